"""Who runs first, and how the tokens of a step are divided."""

from __future__ import annotations

import pytest
from support.hand_engine import HandEngine, reference, stream

from prefixcache_worker.engine.tenant_service import MAX_REMEMBERED_TENANTS, TenantService


def order(hand: HandEngine) -> list[str]:
    """Run to the end; the requests in the order in which they ended."""
    hand.run()
    return list(hand.completions)


def tokens_per_step(hand: HandEngine) -> list[dict[str, int]]:
    """Run to the end; what each request was given, step by step."""
    steps: list[dict[str, int]] = []
    schedule = hand.engine._scheduler.schedule

    def recording():
        scheduled = schedule()
        steps.append({})
        for sequence, num_tokens in scheduled.spans:
            key = sequence.request.request_id
            steps[-1][key] = steps[-1].get(key, 0) + num_tokens
        return scheduled

    hand.engine._scheduler.schedule = recording
    hand.run()
    return steps


def test_a_higher_priority_goes_first_and_equal_ones_in_order_of_arrival():
    hand = HandEngine(max_running=1)
    for name, priority in zip("abcde", (0, -5, 7, 0, 7), strict=True):
        hand.add(stream(name, 20), request_id=name, priority=priority)
    assert order(hand) == ["c", "e", "a", "d", "b"]


def test_one_request_of_another_tenant_is_overtaken_by_one_of_a_flood_at_most():
    hand = HandEngine(max_running=1)
    for i in range(100):
        hand.add([*stream("a", 20), 500 + i], request_id=f"flood {i}", tenant="flood")
    hand.step()
    assert list(hand.completions) == ["flood 0"]
    hand.add(stream("b", 20), request_id="one", tenant="one")
    assert order(hand).index("one") == 2


def test_tenants_that_wait_all_the_time_get_the_same_number_of_tokens():
    """However long their requests are: after each request they differ by less than the longest costs."""
    hand = HandEngine(max_running=1)
    for i in range(6):
        hand.add([500 + i, *stream("a", 89)], 11, request_id=f"long {i}", tenant="long")
    for i in range(60):
        hand.add([600 + i, *stream("b", 9)], request_id=f"short {i}", tenant="short")
    hand.run()
    served = {"long": 0, "short": 0}
    for request_id in list(hand.completions)[:50]:  # both wait until then
        tenant = request_id.split()[0]
        served[tenant] += 100 if tenant == "long" else 10
        assert abs(served["long"] - served["short"]) <= 100
    assert served["long"] >= 200


def test_what_is_cached_costs_a_tenant_nothing():
    hand = HandEngine(max_running=1)
    hand.generate(stream("a", 90), tenant="hits")
    hand.generate(stream("v", 90), tenant="misses")
    for i in range(5):
        hand.add([*stream("a", 90), 500 + i], request_id=f"hits {i}", tenant="hits")
        hand.add([500 + i, *stream("b", 19)], request_id=f"misses {i}", tenant="misses")
    assert [request_id.split()[0] for request_id in order(hand)][2:9] == ["hits", "misses"] + ["hits"] * 4 + [
        "misses"
    ]


def test_idle_tenants_save_nothing_up():
    service = TenantService()
    for _ in range(2):
        service.starts_waiting("busy")
    service.charge("busy", 1000)
    service.starts_waiting("new")
    assert service["new"] == service["busy"] == 1000
    service.charge("new", 5)
    service.stops_waiting("new")
    service.charge("busy", 100)
    service.starts_waiting("new")
    assert (service["new"], service["busy"]) == (1100, 1100)


def test_a_tenant_that_comes_when_nobody_waits_starts_where_the_last_one_was():
    service = TenantService()
    service.starts_waiting("old")
    service.charge("old", 70)
    service.stops_waiting("old")
    service.starts_waiting("new")
    assert service["new"] == 70


def test_tenants_that_do_not_count_any_more_are_forgotten():
    service = TenantService()
    service.starts_waiting("always")
    for i in range(3 * MAX_REMEMBERED_TENANTS):
        service.starts_waiting(f"tenant {i}")
        service.charge(f"tenant {i}", 1)
        service.charge("always", 2)
        service.stops_waiting(f"tenant {i}")
    assert len(service._num_tokens) <= MAX_REMEMBERED_TENANTS + 2
    assert service["always"] == 6 * MAX_REMEMBERED_TENANTS


def test_no_more_tenants_are_remembered_when_each_comes_once_and_nobody_waits():
    """The level stays at zero, and every counter is above it: the highest are kept."""
    service = TenantService()
    for i in range(5 * MAX_REMEMBERED_TENANTS):
        service.starts_waiting(f"tenant {i}")
        service.stops_waiting(f"tenant {i}")
        service.charge(f"tenant {i}", 1000 if i == 7 else 1)
        assert len(service._num_tokens) <= MAX_REMEMBERED_TENANTS + 1
    assert service["tenant 7"] == 1000


def test_what_runs_on_after_its_tenant_is_forgotten_is_charged_from_the_level():
    service = TenantService()
    service.starts_waiting("waits")
    service.charge("waits", 50)
    service.starts_waiting("runs")
    service.stops_waiting("runs")
    for i in range(2 * MAX_REMEMBERED_TENANTS):
        service.charge(f"tenant {i}", 100)
    assert "runs" not in service._num_tokens
    service.charge("runs", 3)
    assert service["runs"] == 53


def test_a_cached_prefix_goes_first_and_prompts_with_one_prefix_go_together():
    hand = HandEngine(max_running=1)
    for i in range(3):
        for name in "ab":
            hand.add([*stream(name, 40), 500 + i], request_id=f"{name}{i}")
    assert order(hand) == ["a0", "a1", "a2", "b0", "b1", "b2"]


@pytest.mark.parametrize("options", [{"use_cache": False}, {"prompt_logprobs": 0}])
def test_what_may_not_use_the_cache_does_not_go_first_for_what_is_in_it(options):
    hand = HandEngine(max_running=1)
    hand.generate(stream("a", 40))
    hand.add(stream("b", 40), request_id="old")
    hand.add([*stream("a", 40), 500], request_id="young", **options)
    assert order(hand)[1:] == ["old", "young"]


def test_a_prompt_that_never_hits_is_overtaken_so_many_times_and_no_more():
    hand = HandEngine(max_running=1, max_overtakes=3)
    hand.generate(stream("a", 40))
    for i in range(2):
        hand.add([*stream("a", 40), 500 + i], request_id=f"old {i}")
    hand.add(stream("b", 40), request_id="cold")
    for i in range(8):
        hand.add([*stream("a", 40), 600 + i], request_id=f"hit {i}")
    assert order(hand)[1:] == ["old 0", "old 1", "hit 0", "hit 1", "hit 2", "cold"] + [
        f"hit {i}" for i in range(3, 8)
    ]


def test_a_low_priority_is_overtaken_so_many_times_and_then_keeps_its_place():
    """Also when it runs: nothing that came later makes it give way again."""
    hand = HandEngine(max_running=1, max_overtakes=3)
    hand.add(stream("a", 20), 3, request_id="running", priority=9)
    hand.add(stream("b", 20), 30, request_id="low", priority=-1)
    for i in range(6):
        hand.add([500 + i, *stream("c", 20)], request_id=f"high {i}", priority=9)
    assert order(hand) == ["running", "high 0", "high 1", "high 2", "low", "high 3", "high 4", "high 5"]
    requests = hand.engine.stats().requests
    assert (requests.preemptions, requests.promoted) == (0, 1)
    assert hand.tokens("low") == reference(stream("b", 20), 30)


def test_a_running_prompt_ages_too():
    """Urgent prompts take every step until the long one has been overtaken often enough."""
    hand = HandEngine(max_batch_tokens=16, max_overtakes=4)
    hand.add(stream("a", 48), request_id="long")
    hand.step()
    for i in range(8):
        hand.add([500 + i, *stream("b", 15)], request_id=f"urgent {i}", priority=1)
    assert order(hand).index("long") == 4


def test_no_overtaking_at_all_is_the_order_of_arrival():
    hand = HandEngine(max_running=1, max_overtakes=0)
    hand.generate(stream("a", 40))
    names = [hand.add(stream(name, 40), request_id=name, priority=i) for i, name in enumerate("bcade")]
    assert order(hand)[1:] == names


def test_a_long_prompt_costs_no_answer_a_step():
    hand = HandEngine(max_batch_tokens=32)
    answers = [hand.add(stream(name, 10), 20, request_id=name) for name in "abc"]
    hand.step()
    hand.add(stream("d", 300), request_id="long")
    steps = tokens_per_step(hand)
    assert all(step.keys() >= set(answers) for step in steps[:19])
    assert [step["long"] for step in steps[:10]] == [29] * 10
    assert max(sum(step.values()) for step in steps) == 32


def test_more_answers_than_tokens_take_turns_and_leave_a_part_to_prompts():
    hand = HandEngine(max_batch_tokens=8)
    answers = [hand.add([500 + i], 30, request_id=f"answer {i}") for i in range(16)]
    while not all(hand.tokens(answer) for answer in answers):
        hand.step()
    hand.add(stream("a", 40), request_id="prompt")
    steps = tokens_per_step(hand)
    assert [step.get("prompt") for step in steps[:20]] == [2] * 20
    for i in range(0, 18, 3):  # 16 answers, 6 in a step
        assert set().union(*steps[i : i + 3]) == {*answers, "prompt"}


def test_a_long_prompt_of_one_tenant_does_not_hold_up_a_short_one_of_another():
    hand = HandEngine(max_batch_tokens=16)
    hand.add(stream("a", 400), request_id="long", tenant="x")
    hand.step()
    hand.add(stream("b", 16), request_id="short", tenant="y")
    hand.step()
    assert list(hand.completions) == ["short"]


def test_prompts_of_one_tenant_are_finished_in_the_order_they_began():
    hand = HandEngine(max_batch_tokens=16)
    for name in "abc":
        hand.add(stream(name, 40), request_id=name)
    assert order(hand) == ["a", "b", "c"]
