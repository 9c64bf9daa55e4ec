"""Whom a prompt waits for: whatever runs, the same as by looking at every sequence."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hand_engine import HandEngine, stream
from support.naive_single_flight import naive_find_flight

from prefixcache_worker.engine import scheduler
from prefixcache_worker.engine.sequence import Sequence
from prefixcache_worker.engine.single_flight import Flight, RunningPrefills, find_flight
from prefixcache_worker.model.scripted_model import ScriptedModel


class Arrival(NamedTuple):
    """A request, and what happens to another one before it comes."""

    num_common_tokens: int
    num_own_tokens: int
    num_public_tokens: int
    tenant: str
    priority: int
    use_cache: bool
    prompt_logprobs: int | None
    num_steps_before: int
    other: int
    happens: str

    @property
    def prompt(self) -> list[int]:
        own = stream("b", self.num_own_tokens, self.num_own_tokens % 2)
        return stream("a", self.num_common_tokens) + own


arrivals = st.lists(
    st.builds(
        Arrival,
        num_common_tokens=st.sampled_from([8, 20, 64, 80, 80]),
        num_own_tokens=st.integers(1, 20),
        num_public_tokens=st.sampled_from([0, 5, 16, 64, 70]),
        tenant=st.sampled_from("xyz"),
        priority=st.sampled_from([0, 0, 0, 1]),
        use_cache=st.sampled_from([True, True, True, False]),
        prompt_logprobs=st.sampled_from([None, None, None, 0]),
        num_steps_before=st.sampled_from([0, 0, 0, 1, 2]),
        other=st.integers(0, 10),
        happens=st.sampled_from(["", "", "preempt", "pause", "resume", "cancel"]),
    ),
    min_size=2,
    max_size=10,
)


class ComparedChoices:
    """Stands in for `find_flight`, and asks the oracle too."""

    def __init__(self) -> None:
        self.hand: HandEngine | None = None
        self.num_found = 0

    def __call__(self, cache: Any, sequence: Sequence, prefills: RunningPrefills) -> Flight | None:
        assert self.hand is not None
        flight = find_flight(cache, sequence, prefills)
        assert flight == naive_find_flight(cache, sequence, self.hand.engine._scheduler.running)
        self.num_found += flight is not None
        return flight


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch) -> ComparedChoices:
    compared = ComparedChoices()
    monkeypatch.setattr(scheduler, "find_flight", compared)
    return compared


def run(choices: ComparedChoices, requests: list[Arrival], **limits: int) -> None:
    hand = HandEngine(
        model=ScriptedModel([7], vocabulary_size=2000, eos_token_id=1999), block_size=8, **limits
    )
    choices.hand = hand
    for number, request in enumerate(requests):
        for _ in range(request.num_steps_before):
            if hand.engine.has_work:
                hand.step()
        act(hand, request.happens, str(request.other % max(number, 1)))
        hand.add(
            request.prompt,
            3,
            request_id=str(number),
            tenant=request.tenant,
            public=min(request.num_public_tokens, len(request.prompt)),
            priority=request.priority,
            use_cache=request.use_cache,
            prompt_logprobs=request.prompt_logprobs,
        )
    for number in range(len(requests)):
        hand.engine.resume(str(number))
    hand.run()


def act(hand: HandEngine, happens: str, request_id: str) -> None:
    if request_id not in hand.engine._answers:
        return
    match happens:
        case "preempt":
            hand.engine.preempt(request_id)
        case "pause":
            hand.engine.pause(request_id)
        case "resume":
            hand.engine.resume(request_id)
        case "cancel":
            hand.engine.cancel(request_id)


def test_whoever_runs_the_choice_is_that_of_the_oracle(choices):
    @settings(deadline=None, max_examples=50)
    @given(
        requests=arrivals,
        num_blocks=st.sampled_from([16, 30, 200]),
        max_batch_tokens=st.sampled_from([16, 30, 60]),
        max_overtakes=st.sampled_from([0, 2, 50]),
    )
    def check(requests: list[Arrival], **limits: int) -> None:
        run(choices, requests, max_running=5, **limits)

    check()
    assert choices.num_found


def test_of_equals_it_is_the_first_that_was_admitted(choices):
    """Both compute the same 40 tokens for all; the later one's prompt comes first in the order of tokens."""
    hand = HandEngine(block_size=8, max_batch_tokens=16)
    choices.hand = hand
    hand.add([*stream("a", 40), 500, *stream("b", 40)], request_id="first", tenant="x", public=41)
    hand.step()
    hand.add(
        [*stream("a", 40), 400, *stream("b", 40)], request_id="second", tenant="x", public=41, priority=1
    )
    hand.step()
    assert [sequence.key for sequence in hand.engine._scheduler.running] == ["first", "second"]
    follower = [*stream("a", 40), 450]
    hand.add(follower, request_id="follower", tenant="y")
    [waiting] = hand.engine._scheduler.waiting
    flight = choices(hand.cache, waiting, hand.engine._scheduler._prefills)
    assert flight is not None
    assert (flight.leader.key, flight.num_tokens) == ("first", 40)
