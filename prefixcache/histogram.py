"""How often values lay between fixed bounds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


class HistogramCounts(NamedTuple):
    """A histogram at one moment. Counts never fall from one moment to a later one, nor does the sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """Values up to each bound and above the one before, and at last those above all."""
    sum: float
    """Of all values."""

    @property
    def total(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Each bound, and how many values were no more. Those above all bounds are left out."""
        return list(zip(self.bounds, accumulate(self.counts), strict=False))


class Histogram:
    """Counts values by plain integers, so that it costs little where much happens. One thread at a time."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Requires: the bounds ascend."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value so many times. A negative one, as of a clock that goes back, is 0. O(log bounds)."""
        if value < 0:
            value = 0.0
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def counts(self) -> HistogramCounts:
        """A copy of what was counted. O(bounds)."""
        return HistogramCounts(self._bounds, tuple(self._counts), self._sum)
