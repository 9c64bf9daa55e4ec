"""A distribution in six figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
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
    if len(ordered) == 1:
        percentiles = ordered * 99
    else:
        percentiles = statistics.quantiles(ordered, n=100, method="inclusive")
    return Distribution(
        count=len(ordered),
        mean=statistics.fmean(ordered),
        p50=percentiles[49],
        p90=percentiles[89],
        p99=percentiles[98],
        max=ordered[-1],
    )
