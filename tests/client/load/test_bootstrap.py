"""Intervals for the difference of two measurements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache_client.load.report.bootstrap import Percentile, RatioOfSums, Statistic, intervals

Sessions = list[list[float]]


@st.composite
def drawn_sessions(draw: st.DrawFn) -> tuple[Sessions, list[int]]:
    """Sessions with values, and how often each is taken."""
    sessions = draw(st.lists(st.lists(st.floats(0, 1e3), max_size=4), min_size=1, max_size=6))
    return sessions, draw(st.lists(st.integers(0, 3), min_size=len(sessions), max_size=len(sessions)))


@given(drawn_sessions(), st.sampled_from((50, 90, 99)))
def test_statistics_are_those_of_the_values_written_out(
    drawn: tuple[Sessions, list[int]], percent: int
) -> None:
    sessions, draw = drawn
    taken = [value for session, count in zip(sessions, draw, strict=True) for value in session * count]
    counts = np.array(draw)
    mean = RatioOfSums([(sum(session), len(session)) for session in sessions])

    if not any(sessions):
        return
    percentile = Percentile(sessions, percent)
    if not taken:
        assert np.isnan(mean.value(counts))
        assert np.isnan(percentile.value(counts))
    else:
        assert mean.value(counts) == pytest.approx(np.mean(taken))
        assert percentile.value(counts) == pytest.approx(np.percentile(taken, percent))


def sample(random: np.random.Generator, num_sessions: int, shift: float) -> Sessions:
    """Sessions of one to eight turns that are alike within a session; of mean `shift`, and skewed."""
    levels = random.exponential(1.0, num_sessions) - 1.0
    return [list(shift + level + random.normal(0, 0.3, size=random.integers(1, 9))) for level in levels]


def mean(sessions: Sessions) -> Statistic:
    return RatioOfSums([(sum(session), len(session)) for session in sessions])


def test_an_interval_holds_the_true_difference_as_often_as_it_says() -> None:
    random = np.random.default_rng(2026)
    repetitions, held = 200, 0
    for repetition in range(repetitions):
        first, second = sample(random, 60, 0.0), sample(random, 50, 0.4)
        ((low, high),) = intervals([(mean(first), mean(second))], seed=repetition, num_resamples=300)
        held += low <= 0.4 <= high

    assert 0.90 <= held / repetitions <= 0.99


def test_the_interval_of_a_percentile_holds_too() -> None:
    random = np.random.default_rng(7)
    repetitions, held = 200, 0
    for repetition in range(repetitions):
        first, second = ([[value] for value in random.exponential(1.0, 100)] for _ in range(2))
        ((low, high),) = intervals(
            [(Percentile(first, 90), Percentile(second, 90))], seed=repetition, num_resamples=300
        )
        held += low <= 0.0 <= high

    assert 0.90 <= held / repetitions <= 0.99


def test_drawing_single_requests_would_be_too_sure() -> None:
    """Why sessions are what is drawn."""
    random = np.random.default_rng(3)
    first, second = sample(random, 60, 0.0), sample(random, 60, 0.0)
    split = [[[value] for session in side for value in session] for side in (first, second)]

    ((low, high),) = intervals([(mean(first), mean(second))], seed=0)
    ((split_low, split_high),) = intervals([(mean(split[0]), mean(split[1]))], seed=0)

    assert high - low > 1.5 * (split_high - split_low)


def test_the_same_seed_gives_the_same_interval() -> None:
    random = np.random.default_rng(5)
    pair = (mean(sample(random, 30, 0.0)), mean(sample(random, 30, 0.0)))

    assert intervals([pair], seed=1) == intervals([pair], seed=1)
    assert intervals([pair], seed=1) != intervals([pair], seed=2)


def test_all_figures_come_from_the_same_draws() -> None:
    random = np.random.default_rng(5)
    pair = (mean(sample(random, 30, 0.0)), mean(sample(random, 30, 0.0)))

    one, other = intervals([pair, pair], seed=1)

    assert one == other == intervals([pair], seed=1)[0]
