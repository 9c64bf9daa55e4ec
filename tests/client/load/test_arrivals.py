"""When sessions begin."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scripted_target import one_turn

from prefixcache_client.load.arrivals import (
    Arrivals,
    Bursts,
    ClosedLoop,
    ConstantRate,
    Due,
    Pause,
    Planned,
    Poisson,
    Tally,
)

RATES = st.floats(0.01, 10_000)


def moments(arrivals: Arrivals, count: int) -> list[float]:
    sessions = itertools.repeat(one_turn())
    return [due.seconds for due in itertools.islice(arrivals.due(sessions, Tally()), count)]


@given(rate=RATES, count=st.integers(1, 200))
def test_a_constant_rate_has_equal_gaps_and_does_not_drift(rate: float, count: int) -> None:
    assert moments(ConstantRate(rate=rate), count) == [i / rate for i in range(count)]


@given(rate=RATES, burst=st.integers(1, 20), num_bursts=st.integers(1, 10))
def test_bursts_come_together_and_keep_the_rate(rate: float, burst: int, num_bursts: int) -> None:
    made = moments(Bursts(rate=rate, burst=burst), burst * num_bursts)

    assert [len(list(group)) for _, group in itertools.groupby(made)] == [burst] * num_bursts
    assert made[-1] == pytest.approx((num_bursts - 1) * burst / rate)


@given(rate=RATES, seed=st.integers(0, 2**32 - 1))
def test_poisson_moments_ascend_and_depend_on_the_seed_alone(rate: float, seed: int) -> None:
    made = moments(Poisson(rate=rate, seed=seed), 50)

    assert made == sorted(made)
    assert made == moments(Poisson(rate=rate, seed=seed), 50)
    assert made != moments(Poisson(rate=rate, seed=seed + 1), 50)


def test_poisson_gaps_are_exponential() -> None:
    """Of exponential gaps the mean equals the standard deviation, and 1/e are longer than the mean."""
    made = moments(Poisson(rate=20, seed=3), 20_000)
    gaps = [later - earlier for earlier, later in itertools.pairwise(made)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5

    assert mean == pytest.approx(1 / 20, rel=0.03)
    assert deviation == pytest.approx(mean, rel=0.05)
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(0.3679, abs=0.02)


def test_b138_the_same_seed_gives_the_same_moments_in_another_process() -> None:
    program = (
        "import itertools, json\n"
        "from prefixcache_client.load.arrivals import Poisson, Tally\n"
        "due = Poisson(rate=7, seed=11).due(itertools.repeat(None), Tally())\n"
        "print(json.dumps([d.seconds for d in itertools.islice(due, 100)]))"
    )
    other = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(other.stdout) == moments(Poisson(rate=7, seed=11), 100)


def test_planned_sessions_begin_when_the_workload_says() -> None:
    sessions = [one_turn(seconds=seconds) for seconds in (0.5, 0.5, 7.25)]

    assert list(Planned().due(iter(sessions), Tally())) == [Due(s.seconds or 0.0, s) for s in sessions]


def test_a_session_without_a_moment_cannot_be_planned() -> None:
    due = Planned().due(iter([one_turn(seconds=0.0), one_turn()]), Tally())
    next(due)

    with pytest.raises(ValueError, match="session 1 of the workload has no time of its own: give a rate"):
        next(due)


def test_a_closed_loop_begins_a_session_only_when_one_has_ended() -> None:
    tally = Tally()
    due = ClosedLoop(concurrency=2).due(itertools.repeat(one_turn()), tally)

    assert isinstance(next(due), Due)
    tally.num_live_sessions = 2
    assert next(due) == Pause(float("inf"))
    tally.num_live_sessions, tally.now = 1, 3.5
    assert next(due) == Due(3.5, one_turn())


def test_no_arrivals_take_a_session_that_nobody_asked_for() -> None:
    """A workload without end is made as it is sent."""
    for arrivals in (
        ConstantRate(rate=1),
        Poisson(rate=1),
        Bursts(rate=1, burst=9),
        ClosedLoop(concurrency=9),
    ):
        numbers = itertools.count()
        due = arrivals.due((one_turn(seconds=float(number)) for number in numbers), Tally())
        for _ in range(3):
            next(due)
        assert next(numbers) == 3, arrivals


@pytest.mark.parametrize("rate", [0, -1, 100_001, float("inf"), float("nan")])
def test_a_rate_is_more_than_nothing_and_can_be_sent(rate: float) -> None:
    for make in (
        lambda: ConstantRate(rate=rate),
        lambda: Poisson(rate=rate),
        lambda: Bursts(rate=rate, burst=1),
    ):
        with pytest.raises(ValueError, match="rate must be above 0 and at most 100,000 sessions"):
            make()


def test_counts_of_sessions_are_at_least_one() -> None:
    with pytest.raises(ValueError, match="burst must be at least 1 session, got 0"):
        Bursts(rate=1, burst=0)
    with pytest.raises(ValueError, match="concurrency must be at least 1 session, got 0"):
        ClosedLoop(concurrency=0)
