"""Confidence intervals for the difference of two measurements.

The method is the percentile bootstrap for two samples (Efron and Tibshirani, "An Introduction to the
Bootstrap", 1993, chapters 8 and 13): draw from each measurement, with replacement, as many as it has; take
the difference of the statistic; do so many times; the middle 95 % of the differences are the interval. What
is drawn are whole sessions, since the turns of one depend on each other: drawing single requests would make
intervals too narrow (Davison and Hinkley, "Bootstrap Methods and their Application", 1997, section 3.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES = 2_000
CONFIDENCE = 0.95


class Interval(NamedTuple):
    """From `low` to `high`."""

    low: float
    high: float


class Statistic(Protocol):
    """A figure of sessions that some of may be left out and others be taken several times."""

    @property
    def num_sessions(self) -> int: ...

    def value(self, draw: NDArray[np.int64]) -> float:
        """The figure when each session is taken so often; NaN when there is nothing to make it of."""
        ...


class RatioOfSums:
    """Sum of the numerators over the sum of the denominators: a mean, or a share. O(sessions)."""

    def __init__(self, sessions: Sequence[tuple[float, float]]) -> None:
        """Takes a numerator and a denominator of each session. Requires: no denominator is below 0."""
        self._numerators, self._denominators = np.asarray(sessions, dtype=np.float64).T
        self.num_sessions = len(sessions)

    def value(self, draw: NDArray[np.int64]) -> float:
        denominator = float(draw @ self._denominators)
        return float(draw @ self._numerators) / denominator if denominator else np.nan


class Percentile:
    """A percentile of all values of the sessions drawn, as `Distribution` defines it. O(values)."""

    def __init__(self, sessions: Sequence[Sequence[float]], percent: float) -> None:
        """Takes the values of each session. Requires: there is one."""
        values = np.concatenate([np.asarray(session, dtype=np.float64) for session in sessions])
        owners = np.repeat(np.arange(len(sessions)), [len(session) for session in sessions])
        order = np.argsort(values)
        self._values, self._owners = values[order], owners[order]
        self._percent = percent
        self.num_sessions = len(sessions)

    def value(self, draw: NDArray[np.int64]) -> float:
        ends = np.cumsum(draw[self._owners])  # where the copies of each value end, sorted
        last = int(ends[-1]) - 1
        if last < 0:
            return np.nan
        place = self._percent / 100 * last
        below = int(place)
        low, high = self._values[np.searchsorted(ends, [below, min(below + 1, last)], side="right")]
        return float(low + (place - below) * (high - low))


def intervals(
    pairs: Sequence[tuple[Statistic, Statistic]],
    *,
    seed: int,
    num_resamples: int = NUM_RESAMPLES,
    confidence: float = CONFIDENCE,
) -> list[Interval]:
    """For each pair, of the second statistic minus the first one. The same seed makes the same intervals.

    Requires: all first ones are of the same sessions, and all second ones.
    """
    if not pairs:
        return []
    random = np.random.default_rng(seed)
    sizes = [statistic.num_sessions for statistic in pairs[0]]
    differences = np.empty((num_resamples, len(pairs)))
    for row in differences:
        first_draw, second_draw = (
            np.bincount(random.integers(size, size=size), minlength=size) for size in sizes
        )
        row[:] = [second.value(second_draw) - first.value(first_draw) for first, second in pairs]
    outside = 50 * (1 - confidence)
    ends = np.nanpercentile(differences, (outside, 100 - outside), axis=0)
    return [Interval(float(low), float(high)) for low, high in ends.T]
