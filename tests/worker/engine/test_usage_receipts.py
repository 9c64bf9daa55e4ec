"""What requests cost, one by one and by tenant."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hand_engine import HandEngine, stream

from prefixcache_worker.engine.request import Usage
from prefixcache_worker.engine.tenant_usage import TenantUsage, tenant_usage
from prefixcache_worker.engine.usage_ledger import FORGOTTEN, Totals, UsageLedger

COUNTS = ("prompt_tokens", "cached_tokens", "computed_tokens", "completion_tokens", "written_tokens")


class TickingClock:
    """One second passes with each engine step: the test moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def run_ticking(hand: HandEngine, clock: TickingClock) -> None:
    while hand.engine.has_work:
        hand.step()
        clock.seconds += 1


def usage_of(hand: HandEngine, request_id: str) -> Usage:
    return hand.completions[request_id].usage


def tenant(hand: HandEngine, name: str = "t") -> TenantUsage:
    (usage,) = tenant_usage(hand.engine, [name])
    return usage


def test_only_what_the_cache_did_not_have_is_written() -> None:
    hand = HandEngine()
    first = hand.add(stream("a", 40), 9)  # the last token is never computed, so 48 rows are written
    hand.run()
    same = hand.add(stream("a", 40), 9)
    hand.run()
    longer = hand.add(stream("a", 56), 1)
    hand.run()
    off = hand.add(stream("b", 40), 9, use_cache=False)
    hand.run()

    assert usage_of(hand, first).written_tokens == 48
    assert usage_of(hand, same).written_tokens == 0
    assert usage_of(hand, longer).cached_tokens == 40
    assert usage_of(hand, longer).written_tokens == 16
    assert usage_of(hand, off).written_tokens == 0


def test_block_seconds_are_blocks_times_the_time_they_were_held() -> None:
    clock = TickingClock()
    hand = HandEngine(clock=clock)
    request_id = hand.add(stream("a", 31), 4)
    run_ticking(hand, clock)
    # Four steps, and it ends before the clock moves behind the last: 2 blocks for the prompt and one token,
    # then 3 from the second token on. It holds them from its first step on: 2 + 2 + 3.
    assert usage_of(hand, request_id).block_seconds == 2 + 2 + 3


def test_waiting_and_preempted_requests_hold_nothing() -> None:
    clock = TickingClock()
    hand = HandEngine(clock=clock, max_running=1)
    first = hand.add(stream("a", 16), 3)
    waiting = hand.add(stream("b", 16), 1)
    hand.step()
    clock.seconds += 10
    hand.step()  # the first holds 1 block until here, and 2 from here on
    hand.engine.preempt(first)
    hand.engine.cancel(waiting)
    clock.seconds += 5
    hand.step()
    clock.seconds += 100
    hand.run()
    # The second count was 2 blocks for 5 s: what was preempted meanwhile is noticed in the next step.
    assert usage_of(hand, first).block_seconds == 1 * 10 + 2 * 5


def test_choices_of_one_request_hold_what_they_share_once() -> None:
    clock = TickingClock()
    hand = HandEngine(clock=clock)
    request_id = hand.add(stream("a", 32), 3, n=4)
    run_ticking(hand, clock)
    # 2 blocks of the prompt while it is computed; then each choice has a third one of its own.
    assert usage_of(hand, request_id).block_seconds == 2 + (2 + 4)


def test_a_cancelled_and_a_failed_request_count_for_what_they_cost() -> None:
    hand = HandEngine(num_blocks=4, max_batch_tokens=16)
    cancelled = hand.add(stream("a", 48), 8)
    never_ran = hand.add(stream("b", 16), 8)
    hand.step()
    hand.engine.cancel(cancelled)
    hand.engine.cancel(never_ran)
    refused = hand.add(stream("c", 32), 60)
    hand.run()
    assert refused in hand.completions or refused in hand.failures

    usage = tenant(hand)
    assert usage.finished_requests + usage.unfinished_requests == 3
    assert usage.unfinished_requests >= 2
    assert usage.prompt_tokens == 48 + 32  # a prompt counts in full from when it first runs
    assert usage.prompt_tokens == usage.cached_tokens + usage.computed_tokens
    assert usage.prompt_tokens == hand.engine.stats().tokens.prompt


def test_live_requests_are_counted_as_they_go() -> None:
    clock = TickingClock()
    hand = HandEngine(clock=clock)
    hand.add(stream("a", 16), 8)
    hand.add(stream("b", 16), 8, tenant="u")
    hand.step()
    clock.seconds += 3
    usage = tenant(hand)
    assert (usage.live_requests, usage.finished_requests, usage.unfinished_requests) == (1, 0, 0)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.written_tokens) == (16, 1, 16)
    assert usage.block_seconds == 3
    assert usage.num_blocks == 1
    assert [usage.tenant for usage in tenant_usage(hand.engine, None)] == ["t", "u"]
    (unknown,) = tenant_usage(hand.engine, ["nobody"])
    assert unknown == TenantUsage(tenant="nobody")


@pytest.mark.parametrize("scheme", ["paged", "contiguous"])
def test_schemes_that_share_nothing_have_usage_too(scheme: str) -> None:
    clock = TickingClock()
    hand = HandEngine(clock=clock, scheme=scheme, context_length=64)
    hand.add(stream("a", 16), 2)
    hand.step()
    clock.seconds += 2
    held = {"paged": 1, "contiguous": 4}[scheme]
    usage = tenant(hand)
    assert (usage.num_blocks, usage.block_seconds, usage.written_tokens) == (held, 2 * held, 0)
    hand.run()
    assert tenant(hand).finished_requests == 1
    assert tenant(hand).num_blocks == 0


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_sums_of_all_receipts_are_the_ledger(data: st.DataObject) -> None:
    clock = TickingClock()
    hand = HandEngine(num_blocks=24, max_batch_tokens=48, max_running=6, clock=clock)
    of_tenant: dict[str, str] = {}
    cancelled: set[str] = set()
    for _ in range(data.draw(st.integers(5, 25))):
        action = data.draw(st.sampled_from(["add", "step", "step", "cancel", "preempt"]))
        ended = hand.completions.keys() | hand.failures.keys() | cancelled
        live = [request_id for request_id in of_tenant if request_id not in ended]
        if action == "add":
            request_id = hand.add(
                stream(data.draw(st.sampled_from("ab")), data.draw(st.integers(1, 60))),
                data.draw(st.integers(1, 20)),
                tenant=(name := data.draw(st.sampled_from("tu"))),
                n=data.draw(st.integers(1, 3)),
                use_cache=data.draw(st.booleans()),
            )
            of_tenant[request_id] = name
        elif action == "step":
            hand.step()
            clock.seconds += 1
        elif live and action == "cancel":
            request_id = data.draw(st.sampled_from(live))
            assert hand.engine.cancel(request_id)
            cancelled.add(request_id)
        elif live:
            hand.engine.preempt(data.draw(st.sampled_from(live)))
    run_ticking(hand, clock)

    usages = {usage.tenant: usage for usage in tenant_usage(hand.engine, None)}
    assert sum(usage.prompt_tokens for usage in usages.values()) == hand.engine.stats().tokens.prompt
    assert sum(usage.cached_tokens for usage in usages.values()) == hand.engine.stats().tokens.cached
    assert sum(usage.completion_tokens for usage in usages.values()) == hand.engine.stats().tokens.generated
    for name, usage in usages.items():
        assert usage.prompt_tokens == usage.cached_tokens + usage.computed_tokens
        assert usage.live_requests == 0
        ids = [request_id for request_id in of_tenant if of_tenant[request_id] == name]
        receipts = [
            hand.completions[request_id].usage for request_id in ids if request_id in hand.completions
        ]
        assert usage.finished_requests == len(receipts)
        assert usage.unfinished_requests == len(ids) - len(receipts)
        if len(receipts) == len(ids):
            for count in (*COUNTS, "block_seconds"):
                assert getattr(usage, count) == pytest.approx(sum(getattr(r, count) for r in receipts))


def test_the_ledger_forgets_names_but_no_cost() -> None:
    ledger = UsageLedger(max_tenants=2)
    usage = Usage(prompt_tokens=3, cached_tokens=1, computed_tokens=2, completion_tokens=4, block_seconds=0.5)
    for name in ("a", "b", "a", "c", "d"):
        ledger.add(name, usage, is_finished=name != "b")

    assert ledger.tenants() == ["c", "d", FORGOTTEN]
    assert ledger.totals("a") == Totals()
    forgotten = ledger.totals(FORGOTTEN)
    assert (forgotten.finished_requests, forgotten.unfinished_requests) == (2, 1)
    assert (forgotten.prompt_tokens, forgotten.block_seconds) == (9, 1.5)
    ledger.totals("c").finished_requests += 1
    assert ledger.totals("c").finished_requests == 1


def test_every_count_of_a_receipt_has_its_sum() -> None:
    of_usage = {field.name for field in fields(Usage)} - {"is_approximate", "restored_tokens"}
    assert of_usage < {field.name for field in fields(Totals)}
