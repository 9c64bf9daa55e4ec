"""Requests whose reader does not keep up get no steps, keep what nobody needs, and go on where they were."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.hand_engine import HandEngine, reference, stream

from prefixcache_worker.model.scripted_model import ScriptedModel

SCRIPT = list(range(10, 40))


def test_a_paused_request_gets_no_token_and_keeps_its_blocks():
    hand = HandEngine()
    slow, other = hand.add(stream("a", 20), 8), hand.add(stream("b", 20), 8)
    hand.step()
    hand.engine.pause(slow)
    blocks = list(hand.handle(slow).block_table)
    for _ in range(4):
        hand.step()
    assert (len(hand.tokens(slow)), len(hand.tokens(other))) == (1, 5)
    assert list(hand.handle(slow).block_table) == blocks
    hand.engine.resume(slow)
    hand.run()
    assert hand.tokens(slow) == reference(stream("a", 20), 8)
    assert hand.tokens(other) == reference(stream("b", 20), 8)


def test_with_all_paused_there_is_no_work_and_a_step_does_nothing():
    hand = HandEngine()
    slow = hand.add(stream("a", 20), 8)
    hand.step()
    hand.engine.pause(slow)
    assert not hand.engine.has_work
    assert hand.step() == []
    hand.engine.resume(slow)
    assert hand.engine.has_work


def test_one_that_was_paused_before_it_ran_waits_and_lets_others_by():
    hand = HandEngine(max_running=1)
    slow, other = hand.add(stream("a", 20), 2), hand.add(stream("b", 20), 2)
    hand.engine.pause(slow)
    hand.run()
    assert (hand.tokens(slow), len(hand.tokens(other))) == ([], 2)
    hand.engine.resume(slow)
    hand.run()
    assert hand.tokens(slow) == reference(stream("a", 20), 2)


def test_a_paused_request_gives_its_slot_to_whoever_waits():
    """Also to a lower priority, although others don't give way to that."""
    hand = HandEngine(max_running=1)
    slow = hand.add(stream("a", 20), 8, priority=5)
    hand.step()
    other = hand.add(stream("b", 20), 2)
    hand.step()
    assert not hand.tokens(other)
    hand.engine.pause(slow)
    hand.run()
    assert len(hand.tokens(other)) == 2
    assert hand.engine.stats().requests.preemptions == 1
    hand.engine.resume(slow)
    hand.run()
    assert hand.tokens(slow) == reference(stream("a", 20), 8)


def test_a_paused_request_gives_its_blocks_to_whoever_waits():
    """Five blocks: three are the paused one's, and the next prompt needs three."""
    hand = HandEngine(num_blocks=5)
    slow = hand.add(stream("a", 40), 8)
    hand.step()
    other = hand.add(stream("b", 40), 2)
    hand.step()
    assert not hand.tokens(other)
    hand.engine.pause(slow)
    hand.run()
    assert hand.tokens(other) == reference(stream("b", 40), 2)
    hand.engine.resume(slow)
    hand.run()
    assert hand.tokens(slow) == reference(stream("a", 40), 8)


def test_a_paused_prefill_is_no_flight_to_wait_for():
    """It computes what another prompt begins with, and stops halfway: the other one goes on alone."""
    hand = HandEngine(max_batch_tokens=16)
    slow = hand.add(stream("a", 64), 2, prompt_logprobs=0, public=48)
    hand.step()
    other = hand.add([*stream("a", 60), *stream("b", 4)], 2, tenant="less served", public=48)
    hand.step()
    assert hand.engine.stats().requests.followed == 1
    hand.engine.pause(slow)
    hand.run()
    assert len(hand.tokens(other)) == 2
    hand.engine.resume(slow)
    hand.run()
    assert hand.tokens(slow) == reference(stream("a", 64), 2)


def test_all_choices_of_a_request_are_paused_together():
    hand = HandEngine()
    slow = hand.add(stream("a", 20), 8, n=3)
    hand.step()
    hand.engine.pause(slow)
    assert not hand.engine.has_work
    hand.engine.resume(slow)
    hand.run()
    assert [len(hand.tokens(slow, index)) for index in range(3)] == [8, 8, 8]


def test_a_paused_request_that_is_cancelled_leaves_nothing():
    for max_running in (1, 2):  # with one it has to give way first
        hand = HandEngine(max_running=max_running)
        slow = hand.add(stream("a", 20), 8)
        hand.step()
        hand.engine.pause(slow)
        hand.add(stream("b", 20), 2)
        hand.step()
        assert hand.engine.cancel(slow)
        hand.run()
        hand.engine.check()
        assert hand.engine.stats().blocks.live == 0


operations = st.lists(
    st.tuples(
        st.sampled_from(["add", "pause", "pause", "resume", "step", "step", "cancel"]), st.integers(0, 50)
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(
    operations=operations,
    num_blocks=st.integers(8, 16),
    max_running=st.integers(1, 4),
    max_overtakes=st.sampled_from([0, 1, 50]),
    max_batch_tokens=st.sampled_from([1, 8, 64]),
)
def test_whatever_is_paused_when_nothing_is_lost_or_blocked(operations, num_blocks, **limits):
    """No step does nothing while somebody wants something, and what is resumed comes to its whole answer."""
    model = ScriptedModel(SCRIPT, vocabulary_size=1200, eos_token_id=2)
    hand = HandEngine(num_blocks=num_blocks, block_size=4, model=model, **limits)
    requests: list[str] = []
    live: list[str] = []
    for operation, number in operations:
        if operation == "add":
            prompt = stream("abc"[number % 3], 3 + number % 10)
            requests.append(hand.add(prompt, 1 + number % 9, priority=number % 2))
        elif operation == "step":
            had_work, before = hand.engine.has_work, hand.engine.stats().requests.steps
            outputs = hand.step()
            assert (hand.engine.stats().requests.steps > before or bool(outputs)) == had_work
        elif live:
            getattr(hand.engine, operation)(live[number % len(live)])
            hand.engine.check()
        live = [name for name in requests if name in hand.engine._answers]
    for name in live:
        hand.engine.resume(name)
    hand.run()
    assert not hand.failures
    for name in live:
        assert hand.tokens(name) == SCRIPT[: hand.completions[name].usage.completion_tokens]
    assert hand.engine.stats().blocks.live == 0
