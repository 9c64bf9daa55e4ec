"""How long one thing takes: a histogram since the start, and the last observations one by one."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from prefixcache import Histogram, HistogramCounts

NUM_RECENT = 1000
"""The last observations, so many, tell how things are now."""


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Quantiles are those of the last observations, as they were measured: none is made up between two."""

    count: int
    """Observations since the start."""
    p50_seconds: float
    p90_seconds: float
    p99_seconds: float


@dataclass(frozen=True, slots=True)
class RecentSeconds:
    """The last observations at one moment."""

    count: int
    """All observations since the start."""
    seconds: tuple[float, ...]
    """At most `NUM_RECENT`, in the order of their coming."""

    def summary(self) -> LatencySummary:
        """Requires at least one. O(n log n)."""
        ordered = sorted(self.seconds)
        p50, p90, p99 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.9, 0.99))
        return LatencySummary(self.count, p50, p90, p99)


class Latency:
    """Observations of one duration."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._histogram = Histogram(bounds)
        self._recent: deque[float] = deque(maxlen=NUM_RECENT)
        self._count = 0

    def observe(self, seconds: Sequence[float]) -> None:
        """Count each. O(n), faster where many are equal, as the gaps of one step are."""
        self._count += len(seconds)
        self._recent.extend(seconds)
        for value, times in Counter(seconds).items():
            self._histogram.observe(value, times)

    def counts(self) -> HistogramCounts:
        """O(buckets)."""
        return self._histogram.counts()

    def recent(self) -> RecentSeconds:
        """O(NUM_RECENT)."""
        return RecentSeconds(self._count, tuple(self._recent))
