"""What an observer hears of requests: cancelled, preempted, of several choices, failed."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
from support.hand_engine import HandEngine, stream

from prefixcache_worker.engine.observer import NewTokens, Outcome, RequestEnd, StepTimes


class Notes:
    """Writes everything down."""

    def __init__(self) -> None:
        self.queue: list[float] = []
        self.first: list[float] = []
        self.next: list[float] = []
        self.prefills: list[float] = []
        self.decodes: list[float | None] = []
        self.steps: list[StepTimes] = []
        self.ends: list[tuple[Outcome, float]] = []

    def started(self, seconds: float) -> None:
        self.queue.append(seconds)

    def got_tokens(self, tokens: NewTokens) -> None:
        self.first += [first.seconds for first in tokens.first]
        self.prefills += [first.prefill_seconds for first in tokens.first]
        self.next += tokens.gaps

    def ended(self, end: RequestEnd) -> None:
        self.ends.append((end.outcome, end.seconds))
        self.decodes.append(end.decode_seconds)

    def stepped(self, step: StepTimes) -> None:
        self.steps.append(step)


class Deaf:
    """Fails whatever it is told."""

    def __getattr__(self, name: str) -> Any:
        raise ConnectionError(name)


class Clock:
    """Stands still unless it is told to move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_seconds_are_those_of_the_engines_clock():
    notes, clock = Notes(), Clock()
    hand = HandEngine(observer=notes, clock=clock, max_batch_tokens=64)
    hand.add(stream("a", 100), 3)
    for pause in (2.0, 1.0, 0.5, 0.25):
        clock.now += pause
        hand.step()
    assert not hand.engine.has_work
    assert (notes.queue, notes.first, notes.next) == ([2.0], [3.0], [0.5, 0.25])
    assert notes.ends == [(Outcome.FINISHED, 3.75)]
    assert (notes.prefills, notes.decodes) == ([1.0], [0.75])


def test_b134_a_request_cancelled_before_its_first_token_has_no_time_to_it():
    notes, clock = Notes(), Clock()
    hand = HandEngine(observer=notes, clock=clock, max_batch_tokens=64)
    waiting = hand.add(stream("b", 20), 3)
    clock.now += 1
    hand.engine.cancel(waiting)  # has not run
    running = hand.add(stream("a", 100), 3)
    clock.now += 2
    hand.step()
    clock.now += 4
    hand.engine.cancel(running)  # half of its prompt is computed
    assert (notes.queue, notes.first, notes.next) == ([2.0], [], [])
    assert notes.ends == [(Outcome.CANCELLED, 1.0), (Outcome.CANCELLED, 6.0)]


def test_b135_every_request_counts_once_through_preemptions_cancels_and_choices():
    notes = Notes()
    hand = HandEngine(observer=notes, num_blocks=40, max_running=8)
    lengths = itertools.cycle((1, 2, 5, 9))
    requests = [
        hand.add(stream("abcdesuvzx"[i % 10], 20 + i), next(lengths), n=4 if i == 20 else 1)
        for i in range(30)
    ]
    unstarted, long = requests[-4:], [hand.add(stream("a", 40), 30) for _ in range(3)]
    for request_id in unstarted:
        hand.engine.cancel(request_id)
    num_preempted = 0
    while hand.engine.has_work:
        hand.step()
        for request_id in requests[:10]:
            if request_id not in hand.completions and hand.tokens(request_id) and num_preempted < 5:
                hand.engine.preempt(request_id)
                num_preempted += 1
        for request_id in long:
            if len(hand.tokens(request_id)) == 4 and request_id in hand.engine._answers:
                hand.engine.cancel(request_id)
    stats = hand.engine.stats().requests
    assert stats.preemptions >= 5
    assert len(notes.queue) == len(notes.first) == 33 - 4
    num_tokens = [
        len(hand.tokens(request_id, index))
        for request_id in [*requests, *long]
        for index in range(4)
        if hand.tokens(request_id, index)
    ]
    assert len(num_tokens) == 33 - 4 + 3  # one request has four choices
    assert len(notes.next) == sum(num_tokens) - len(num_tokens)
    ends = [outcome for outcome, _ in notes.ends]
    assert len(ends) == 33
    assert ends.count(Outcome.CANCELLED) == stats.cancelled == 7
    assert ends.count(Outcome.FINISHED) == stats.finished == 26


def test_a_failure_is_an_end():
    notes = Notes()
    hand = HandEngine(observer=notes, num_blocks=2)
    hand.add(stream("a", 20), 100)
    hand.add(stream("a", 20), 2)
    hand.engine.fail_all(RuntimeError("over"))
    assert [outcome for outcome, _ in notes.ends] == [Outcome.FAILED] * 2


def test_an_observer_that_fails_harms_nobody_and_is_logged_once(caplog: pytest.LogCaptureFixture):
    expected = HandEngine().generate(stream("a", 40), 5, n=2)
    hand = HandEngine(observer=Deaf())
    with caplog.at_level(logging.ERROR):
        assert hand.generate(stream("a", 40), 5, n=2) == expected
    assert [record.getMessage() for record in caplog.records] == [
        "the observer of requests fails; what it counts is incomplete"
    ]
