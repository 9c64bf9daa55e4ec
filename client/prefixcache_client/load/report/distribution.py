"""A distribution in six figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Of values that there was at least one of.

    A percentile is interpolated linearly between the two values next to it: the p-th of n sorted values lies
    at index p / 100 * (n - 1). It is the definition that numpy has by default, number 7 of Hyndman and Fan,
    "Sample Quantiles in Statistical Packages" (1996), and the one of most load generators.
    """

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def distribution(values: Iterable[float]) -> Distribution | None:
    """None when there are no values. O(n log n)."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Distribution(
        count=len(ordered),
        mean=statistics.fmean(ordered),
        p50=_percentile(ordered, 50),
        p90=_percentile(ordered, 90),
        p99=_percentile(ordered, 99),
        max=ordered[-1],
    )


def _percentile(ordered: Sequence[float], percent: int) -> float:
    below, hundredths = divmod(percent * (len(ordered) - 1), 100)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    return min(low + (high - low) * hundredths / 100, high)  # rounding must not carry it beyond
