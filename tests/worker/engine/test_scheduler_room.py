"""Who gives way when slots or blocks run out, and what becomes of requests that find no room."""

from __future__ import annotations

import pytest
from support.hand_engine import HandEngine, reference, stream

from prefixcache import Namespace, OutOfBlocksError, QuotaExceededError, TenantQuota
from prefixcache_worker.engine.request import FinishReason, Request

NAMESPACE = Namespace(model="tiny", tenant="t")


def running(hand: HandEngine) -> set[str]:
    return {sequence.request.request_id for sequence in hand.engine._scheduler.running}


def num_preemptions(hand: HandEngine) -> int:
    return hand.engine.stats().requests.preemptions


def test_the_youngest_of_the_lowest_priority_gives_way_when_answers_grow():
    """Five blocks for three answers of two: a fourth block is needed by all at once."""
    hand = HandEngine(num_blocks=5)
    for name, priority in (("a", 0), ("b", 1), ("c", 0)):
        hand.add(stream(name, 15), 10, request_id=name, priority=priority)
    while num_preemptions(hand) == 0:
        hand.step()
    assert running(hand) == {"a", "b"}
    hand.run()
    for name in "abc":
        assert hand.tokens(name) == reference(stream(name, 15), 10)


def test_one_that_was_overtaken_too_often_gives_way_to_nobody():
    """The low one is overtaken once, by `first`; then it keeps its blocks, and the urgent one gives way."""
    hand = HandEngine(num_blocks=4, max_overtakes=1)
    hand.add(stream("a", 31), 10, request_id="low")
    hand.add(stream("b", 40), request_id="first", priority=1)
    hand.step()
    hand.add(stream("c", 31), 10, request_id="urgent", priority=1)
    while num_preemptions(hand) == 0:
        hand.step()
    assert running(hand) == {"low"}
    hand.run()
    assert hand.tokens("low") == reference(stream("a", 31), 10)
    assert hand.tokens("urgent") == reference(stream("c", 31), 10)


def test_who_gave_way_keeps_its_age():
    """A forced preemption of the older: it comes back before the younger is admitted."""
    hand = HandEngine(max_running=1)
    hand.add(stream("a", 20), 5, request_id="old")
    hand.add(stream("b", 20), 5, request_id="young")
    hand.step()
    hand.engine.preempt("old")
    hand.step()
    assert running(hand) == {"old"}


def test_an_urgent_request_takes_a_slot_and_its_victim_goes_on_where_it_was():
    hand = HandEngine(max_running=2)
    hand.add(stream("a", 20), 8, request_id="older")
    hand.add(stream("b", 20), 8, request_id="younger")
    for _ in range(3):
        hand.step()
    hand.add(stream("c", 20), 4, request_id="urgent", priority=1)
    hand.step()
    assert running(hand) == {"older", "urgent"}
    hand.run()
    assert list(hand.completions) == ["urgent", "older", "younger"]
    assert hand.tokens("younger") == reference(stream("b", 20), 8)
    assert num_preemptions(hand) == 1
    assert hand.engine.stats().tokens.cached == 0  # coming back is no hit


def test_an_urgent_request_with_choices_takes_as_many_slots_as_it_needs():
    hand = HandEngine(max_running=4)
    for name in "abcd":
        hand.add(stream(name, 20), 8, request_id=name)
    hand.step()
    hand.add(stream("e", 20), 4, request_id="urgent", priority=1, n=3)
    hand.step()
    assert running(hand) == {"a", "urgent"}
    hand.run()
    assert num_preemptions(hand) == 3


def test_an_urgent_request_takes_blocks_of_as_few_others_as_it_needs():
    hand = HandEngine(num_blocks=9)
    for name in "abc":
        hand.add(stream(name, 40), 8, request_id=name)
    hand.step()
    hand.add(stream("d", 50), 8, request_id="urgent", priority=1)
    hand.step()
    assert running(hand) == {"a", "urgent"}
    hand.run()
    for name in "abc":
        assert hand.tokens(name) == reference(stream(name, 40), 8)
    assert hand.tokens("urgent") == reference(stream("d", 50), 8)


def test_nobody_gives_way_to_an_equal():
    hand = HandEngine(num_blocks=9, max_running=2)
    hand.add(stream("a", 100), 8, request_id="first", priority=1)
    hand.step()
    hand.add(stream("b", 100), 8, request_id="second", priority=1)
    hand.run()
    assert list(hand.completions) == ["first", "second"]
    assert num_preemptions(hand) == 0


def test_nobody_gives_way_in_vain():
    """The urgent prompt needs blocks of another urgent one: those of the other would not do."""
    hand = HandEngine(num_blocks=9)
    hand.add(stream("a", 90), 6, request_id="urgent", priority=1)
    hand.add(stream("b", 30), 6, request_id="other")
    hand.step()
    hand.add(stream("c", 60), 6, request_id="second", priority=1)
    hand.step()
    assert running(hand) == {"urgent", "other"}
    hand.run()
    assert num_preemptions(hand) == 0
    assert hand.tokens("second") == reference(stream("c", 60), 6)


def test_a_token_of_this_step_is_taken_back_from_a_sequence_that_gives_way_in_it():
    """Answers are served first, and only then an urgent prompt takes the blocks of one of them."""
    hand = HandEngine(num_blocks=4, max_batch_tokens=64)
    hand.add(stream("a", 20), 8, request_id="low")
    hand.step()
    hand.add(stream("b", 50), 4, request_id="urgent", priority=1)
    hand.step()
    assert (len(hand.tokens("low")), len(hand.tokens("urgent"))) == (1, 1)
    hand.run()
    assert hand.tokens("low") == reference(stream("a", 20), 8)


def test_coming_back_is_no_request_and_no_hit_of_the_cache():
    hand = HandEngine()
    request_id = hand.add(stream("a", 40), 8)
    for _ in range(4):
        hand.step()
        hand.engine.preempt(request_id)
    hand.run()
    usage = hand.cache.usage("t")
    assert (usage.num_requests, usage.num_prompt_tokens, usage.num_hit_tokens) == (1, 40, 0)
    assert usage.num_resumed_hit_tokens == 40 + 41 + 42 + 43


def test_a_prompt_above_its_tenants_ceiling_fails_alone():
    hand = HandEngine(quotas={"small": TenantQuota(ceiling_blocks=3)})
    hand.add(stream("a", 60), request_id="large", tenant="small")
    hand.add(stream("b", 30), 4, request_id="fits", tenant="small")
    hand.add(stream("c", 60), 4, request_id="free", tenant="large")
    hand.run()
    assert isinstance(hand.failures["large"], QuotaExceededError)
    assert hand.tokens("fits") == reference(stream("b", 30), 4)
    assert hand.tokens("free") == reference(stream("c", 60), 4)
    assert hand.engine.stats().requests.failed == 1


def test_at_its_ceiling_a_tenant_waits_for_its_own_and_holds_nobody_up():
    hand = HandEngine(quotas={"small": TenantQuota(ceiling_blocks=4)})
    hand.add(stream("a", 40), 8, request_id="first", tenant="small", priority=1)
    hand.add(stream("b", 40), 8, request_id="second", tenant="small", priority=1)
    hand.add(stream("c", 40), 8, request_id="other", tenant="large")
    hand.step()
    assert running(hand) == {"first", "other"}
    hand.run()
    assert hand.tokens("second") == reference(stream("b", 40), 8)
    assert num_preemptions(hand) == 0
    assert not hand.failures


def test_at_its_ceiling_a_tenant_gives_way_to_itself_and_to_nobody_else():
    """The young answer gives its blocks to the old one of the same tenant."""
    hand = HandEngine(quotas={"small": TenantQuota(ceiling_blocks=4)})
    hand.add(stream("c", 31), 30, request_id="other", tenant="large")
    for name in "ab":
        hand.add(stream(name, 31), 8, request_id=name, tenant="small")
    while num_preemptions(hand) == 0:
        hand.step()
    assert running(hand) == {"a", "other"}
    hand.run()
    for name in "ab":
        assert hand.tokens(name) == reference(stream(name, 31), 8)


def test_at_its_ceiling_an_urgent_request_takes_the_room_of_its_tenants_other():
    hand = HandEngine(quotas={"small": TenantQuota(ceiling_blocks=4)})
    hand.add(stream("c", 40), 8, request_id="other", tenant="large")
    hand.add(stream("a", 40), 8, request_id="low", tenant="small")
    hand.step()
    hand.add(stream("b", 40), 8, request_id="urgent", tenant="small", priority=1)
    hand.step()
    assert running(hand) == {"urgent", "other"}
    hand.run()
    assert hand.tokens("low") == reference(stream("a", 40), 8)


def test_an_answer_that_outgrows_its_tenants_ceiling_fails_with_what_it_has_sent():
    hand = HandEngine(quotas={"small": TenantQuota(ceiling_blocks=2)})
    request_id = hand.add(stream("a", 20), 30, tenant="small")
    other = hand.add(stream("b", 20), 30, tenant="large")
    hand.run()
    assert isinstance(hand.failures[request_id], QuotaExceededError)
    assert hand.tokens(request_id) == reference(stream("a", 20), 13)  # 32 rows, and the token behind them
    assert hand.tokens(other) == reference(stream("b", 20), 30)
    assert hand.engine.stats().blocks.live == 0


@pytest.mark.parametrize("n", [2, 5])
def test_choices_that_outgrow_the_ceiling_together_end_one_after_the_other(n):
    """The first needs three of four blocks; one choice at a time gives way until it has ended."""
    hand = HandEngine(quotas={"t": TenantQuota(ceiling_blocks=4)})
    request_id = hand.add(stream("a", 40), 20, n=n)
    hand.run()
    for index in range(n):
        assert hand.tokens(request_id, index) == reference(stream("a", 40), 20)
    assert num_preemptions(hand) > 0


@pytest.mark.parametrize("length", [40, 48])
def test_choices_that_cannot_grow_end_their_request_once(length):
    """At 48 tokens all of them are refused in one step: one where it runs, the others where they wait."""
    hand = HandEngine(quotas={"t": TenantQuota(ceiling_blocks=3)})
    request_id = hand.add(stream("a", length), 20, n=3)
    hand.run()
    assert isinstance(hand.failures[request_id], QuotaExceededError)
    assert hand.engine.stats().requests.failed == 1
    assert hand.engine.stats().blocks.live == 0


def test_a_prompt_for_which_pins_leave_no_room_fails_and_the_next_one_runs():
    hand = HandEngine(num_blocks=8)
    hand.generate(stream("a", 64))
    hand.cache.pin(stream("a", 64), NAMESPACE)
    hand.add(stream("b", 70), request_id="large")
    hand.add(stream("c", 40), 4, request_id="fits")
    hand.run()
    assert isinstance(hand.failures["large"], OutOfBlocksError)
    assert hand.tokens("fits") == reference(stream("c", 40), 4)


def test_a_prompt_waits_for_those_that_run_before_it_is_refused():
    """With the other's blocks there is room for it beside the pinned ones."""
    hand = HandEngine(num_blocks=8)
    hand.generate(stream("a", 64))
    hand.cache.pin(stream("a", 64), NAMESPACE)
    hand.add(stream("b", 20), 5, request_id="first")
    hand.add(stream("c", 50), 5, request_id="second")
    hand.run()
    assert list(hand.completions)[1:] == ["first", "second"]
    assert not hand.failures


def test_an_answer_for_which_pins_leave_no_room_fails():
    hand = HandEngine(num_blocks=8)
    hand.generate(stream("a", 64))
    hand.cache.pin(stream("a", 64), NAMESPACE)
    request_id = hand.add(stream("b", 60), 20)
    hand.run()
    assert isinstance(hand.failures[request_id], OutOfBlocksError)
    assert hand.tokens(request_id) == reference(stream("b", 60), 5)
    assert hand.generate(stream("c", 20), 4) == reference(stream("c", 20), 4)


def test_a_floor_of_another_tenant_refuses_what_it_leaves_no_room_for():
    hand = HandEngine(num_blocks=8, quotas={"floor": TenantQuota(floor_blocks=5)})
    hand.generate(stream("a", 79), tenant="floor")
    hand.add(stream("b", 60), request_id="large")
    hand.add(stream("c", 40), 4, request_id="fits")
    hand.run()
    assert isinstance(hand.failures["large"], OutOfBlocksError)
    assert hand.tokens("fits") == reference(stream("c", 40), 4)


def test_who_may_not_declare_tokens_public_fails_alone():
    hand = HandEngine()
    request = Request(
        request_id="r",
        namespace=NAMESPACE,
        prompt_token_ids=tuple(stream("a", 40)),
        num_public_tokens=32,
    )
    hand.engine.add("r", request)
    other = hand.add(stream("b", 20), 3)
    hand.run()
    assert "publisher" in str(hand.failures["r"])
    assert hand.tokens(other) == reference(stream("b", 20), 3)


def test_choices_are_copied_only_where_they_part():
    """Eight answers to one prompt of 40: two blocks in common, and a third one for each."""
    hand = HandEngine(max_running=8)
    request_id = hand.add(stream("a", 40), 8, n=8)
    hand.step()
    assert hand.engine.stats().blocks.live == 3
    hand.step()
    tables = [hand.handle(request_id, index).block_table for index in range(8)]
    assert {tuple(table[:2]) for table in tables} == {tuple(tables[0][:2])}
    assert len({table[2] for table in tables}) == 8
    assert hand.engine.stats().blocks.live == 2 + 8
    assert hand.engine.stats().blocks.copied == 8
    hand.run()
    for index in range(8):
        assert hand.tokens(request_id, index) == reference(stream("a", 40), 8)
        assert hand.finish_reason(request_id, index) is FinishReason.LENGTH


def test_nobody_gives_a_slot_to_who_then_finds_no_blocks():
    """Seven of ten blocks are the first one's: with the low one's there are three, and five are needed."""
    hand = HandEngine(num_blocks=10, max_running=2)
    hand.add(stream("a", 100), 8, request_id="first", priority=5)
    hand.add(stream("b", 8), 8, request_id="low")
    hand.step()
    hand.add(stream("c", 70), 4, request_id="urgent", priority=1)
    hand.step()
    assert running(hand) == {"first", "low"}
    hand.run()
    assert num_preemptions(hand) == 0
    assert hand.tokens("urgent") == reference(stream("c", 70), 4)


def test_nobody_gives_way_for_blocks_that_the_urgent_one_shares_anyway():
    """The urgent prompt needs three more blocks, one is free, and the low one has one of its own."""
    hand = HandEngine(num_blocks=10)
    hand.add(stream("a", 70), 8, request_id="first", priority=5)
    hand.add([*stream("b", 48), *stream("d", 4)], 8, request_id="low")
    hand.step()
    hand.add([*stream("b", 48), *stream("c", 40)], 4, request_id="urgent", priority=1)
    hand.step()
    assert running(hand) == {"first", "low"}
    hand.run()
    assert num_preemptions(hand) == 0


def test_nobody_gives_way_for_blocks_that_a_pin_keeps():
    """The low one holds four pinned blocks and one of its own; the urgent one lacks three."""
    hand = HandEngine(num_blocks=10)
    hand.generate(stream("b", 64))
    hand.cache.pin(stream("b", 64), NAMESPACE)
    hand.add(stream("a", 50), 8, request_id="first", priority=5)
    hand.add(stream("b", 70), 8, request_id="low")
    hand.step()
    hand.add(stream("c", 50), 4, request_id="urgent", priority=1)
    hand.step()
    assert running(hand) == {"first", "low"}
    hand.run()
    assert num_preemptions(hand) == 0


def test_who_is_not_needed_does_not_give_way_although_it_is_the_youngest():
    """The older one gives up the slots of four choices, of which three are needed."""
    hand = HandEngine(max_running=5, max_batch_tokens=16)
    hand.add(stream("a", 90), 4, request_id="four", tenant="a", n=4)
    hand.step()
    hand.add(stream("b", 4), 20, request_id="one", tenant="b")
    hand.step()
    hand.add(stream("c", 4), 4, request_id="urgent", tenant="c", n=3, priority=1)
    hand.step()
    assert running(hand) == {"one", "urgent"}
    hand.run()
    assert num_preemptions(hand) == 1


def test_who_gives_way_and_comes_back_in_one_step_has_one_share_of_it():
    """The long answer needs the block of the short one, which its tenant's floor keeps: both give way.

    The short one is the last of the answers; a prompt that waits leaves it to the end of the step, after
    it has come back by what is left for prompts.
    """
    hand = HandEngine(
        num_blocks=6, max_running=4, max_batch_tokens=4, quotas={"floor": TenantQuota(floor_blocks=1)}
    )
    hand.add(stream("a", 40), 12, request_id="long", tenant="long")
    while not hand.deltas["long"]:
        hand.step()
    for name in "bc":
        hand.add(stream(name, 2), 12, request_id=name, tenant="other", priority=1)
    hand.step()
    hand.add(stream("d", 2), 12, request_id="short", tenant="floor")
    while len(running(hand)) < 4:
        hand.step()
    hand.add(stream("e", 2), 1, request_id="waits", tenant="floor", priority=-1)
    service = hand.engine._scheduler._service
    while num_preemptions(hand) == 0:
        num_tokens, num_charged = len(hand.tokens("short")), service["floor"]
        hand.step()
    assert num_preemptions(hand) == 2
    assert len(hand.tokens("short")) == num_tokens + 1
    assert service["floor"] == num_charged + 1
    hand.run()
    assert hand.tokens("short") == reference(stream("d", 2), 12)
    assert hand.tokens("long") == reference(stream("a", 40), 12)
