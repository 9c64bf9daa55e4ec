"""A prefix that many ask for at once is computed once, whatever becomes of the one that computes it."""

from __future__ import annotations

import pytest
from support.hand_engine import HandEngine, reference, reference_model, stream
from support.recording_model import RecordingModel

one_or_many_tenants = pytest.mark.parametrize("num_tenants", [1, 100])


def burst(num_requests: int, num_tenants: int) -> tuple[HandEngine, RecordingModel]:
    """Requests r0, r1, ... with the same 200 public tokens and a last one of their own; nothing has run.

    Those of one tenant wait for the first because it takes whole steps. Those of others would go
    before it from the second step on.
    """
    model = RecordingModel(reference_model())
    hand = HandEngine(model=model, max_batch_tokens=64)
    for i in range(num_requests):
        tenant = f"t{i % num_tenants}"
        hand.add([*stream("a", 200), 500 + i], 3, request_id=f"r{i}", tenant=tenant, public=200)
    return hand, model


def num_computed(model: RecordingModel, num_first: int = 10**9) -> int:
    """Prompt tokens that were run, of the first so many positions."""
    return sum(
        int((batch.positions < batch.prompt_lengths.clamp(max=num_first)).sum()) for batch in model.batches
    )


def check_answers(hand: HandEngine, first: int, num_requests: int) -> None:
    for i in range(first, num_requests):
        assert hand.tokens(f"r{i}") == reference([*stream("a", 200), 500 + i], 3)


@one_or_many_tenants
@pytest.mark.parametrize("num_requests", [2, 16, 40])
def test_a_burst_computes_each_whole_block_once(num_requests, num_tenants):
    """The 12 whole blocks of the prefix once, and at most the 9 tokens behind them for each."""
    hand, model = burst(num_requests, num_tenants)
    hand.run()
    check_answers(hand, 0, num_requests)
    assert hand.engine.stats().requests.followed == (num_requests - 1 if num_tenants > 1 else 0)
    assert num_computed(model, 192) == 192
    assert num_computed(model) <= 192 + 9 * num_requests


def test_equal_prompts_compute_only_their_last_block_again():
    model = RecordingModel(reference_model())
    hand = HandEngine(model=model, max_batch_tokens=64)
    ids = [hand.add(stream("a", 200), 2) for _ in range(20)]
    hand.run()
    assert all(hand.tokens(request_id) == reference(stream("a", 200), 2) for request_id in ids)
    assert num_computed(model, 192) == 192
    assert num_computed(model) <= 192 + 8 * 20


@one_or_many_tenants
def test_the_leader_is_cancelled_in_the_middle(num_tenants):
    """Its steps stay, and the next in line goes on from there; nobody else computes any of it."""
    hand, model = burst(10, num_tenants)
    hand.step()
    hand.step()
    hand.engine.cancel("r0")
    hand.run()
    check_answers(hand, 1, 10)
    assert num_computed(model, 192) == 192
    assert num_computed(model) <= 201 + 9 * 8


@one_or_many_tenants
def test_the_leader_gives_way_in_the_middle(num_tenants):
    hand, model = burst(10, num_tenants)
    hand.step()
    hand.step()
    hand.engine.preempt("r0")
    hand.run()
    check_answers(hand, 0, 10)
    assert num_computed(model, 192) == 192
    assert num_computed(model) <= 201 + 9 * 9


@one_or_many_tenants
def test_the_leader_fails_in_the_middle(num_tenants):
    hand, model = burst(10, num_tenants)
    hand.step()
    hand.step()

    class Failing(RecordingModel):
        def forward(self, batch, attention):
            raise RuntimeError("no luck")

    hand.engine._model = Failing(reference_model())
    hand.step()
    hand.engine._model = model
    hand.run()
    assert list(hand.failures) == ["r0"]
    check_answers(hand, 1, 10)
    assert num_computed(model, 192) == 192
    assert num_computed(model) <= 201 + 9 * 8


@one_or_many_tenants
def test_every_leader_is_cancelled(num_tenants):
    hand, model = burst(4, num_tenants)
    for i in range(3):
        hand.step()
        hand.engine.cancel(f"r{i}")
    hand.run()
    check_answers(hand, 3, 4)
    assert num_computed(model) == 201


@one_or_many_tenants
def test_whoever_waits_for_a_prefix_can_be_cancelled(num_tenants):
    hand, model = burst(10, num_tenants)
    hand.step()
    for i in range(1, 9):
        assert hand.engine.cancel(f"r{i}")
        hand.engine.check()
    hand.run()
    check_answers(hand, 9, 10)
    assert num_computed(model) == 201 + 9


def test_it_lasts_only_as_long_as_what_they_have_in_common():
    """The leader's own 300 tokens are not waited for."""
    hand = HandEngine(max_batch_tokens=64)
    hand.add(stream("a", 128) + stream("b", 300), request_id="leader", tenant="x", public=128)
    hand.add([*stream("a", 128), 500], request_id="follower", tenant="y", public=128)
    hand.step()
    hand.step()
    assert not hand.completions
    hand.step()
    assert list(hand.completions) == ["follower"]
    assert hand.num_cached("follower") == 128


def test_others_are_not_held_up_by_a_burst():
    hand, _ = burst(10, num_tenants=1)
    hand.add(stream("b", 20), request_id="other", tenant="u")
    hand.step()
    hand.step()
    assert list(hand.completions) == ["other"]


def test_choices_of_a_burst_share_it_too():
    model = RecordingModel(reference_model())
    hand = HandEngine(model=model, max_batch_tokens=64)
    ids = [hand.add(stream("a", 200), 3, n=4) for _ in range(5)]
    hand.run()
    for request_id in ids:
        assert [hand.tokens(request_id, i) for i in range(4)] == [reference(stream("a", 200), 3)] * 4
    assert num_computed(model) == 200 + 4 * 8


def test_tenants_wait_for_what_is_public_and_for_nothing_else():
    model = RecordingModel(reference_model())
    hand = HandEngine(model=model, max_batch_tokens=256)
    for i in range(6):
        hand.add(stream("a", 64) + stream("b", 40), request_id=f"r{i}", tenant=f"t{i}", public=64)
    hand.run()
    assert num_computed(model) == 104 + 5 * 40


def test_an_urgent_request_does_not_wait_for_a_less_urgent_one():
    """The other's next chunk may be far away; what it has published so far is shared all the same."""
    hand = HandEngine(max_batch_tokens=64)
    hand.add(stream("a", 320), request_id="low")
    hand.step()
    hand.add([*stream("a", 320), 500], request_id="urgent", priority=1)
    hand.step()
    assert hand.engine.stats().requests.running == 2
    hand.run()
    assert list(hand.completions) == ["urgent", "low"]
    assert hand.num_cached("urgent") == 64


def test_an_overdue_request_lets_nobody_pass_while_it_waits_for_a_prefix():
    hand = HandEngine(max_batch_tokens=256, max_overtakes=0)
    hand.add(stream("a", 200), 2, request_id="leader")
    hand.add([*stream("a", 200), 500], 2, request_id="follower")
    hand.add(stream("b", 20), 2, request_id="later")
    hand.step()
    assert hand.engine.stats().requests.running == 1
    hand.run()
    assert hand.num_cached("follower") == 192
