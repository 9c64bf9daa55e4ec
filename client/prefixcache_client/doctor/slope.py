"""Step 1: does the time per token grow with the position, and by more than attention explains?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypedDict

from prefixcache_client.doctor.finding import Finding, Verdict
from prefixcache_client.doctor.sizing import LEAST_BLOCK_SIZE

MOST_TIMES_EXPLAINED = 1.3
"""A slope up to so many times what reading the KV explains is healthy."""
LEAST_GROWTH_SHARE = 0.05
"""Of the step's time: where attention is nearly nothing, a little bookkeeping is many times as much."""
LEAST_POINTS = 32
"""Fewer steps tell nothing about a slope."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth of the time of a step with the rows before it, in seconds per row."""

    value: float
    low: float
    """With `high`: 95 of 100 such ranges hold the true slope, if the noise of each step is its own."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlopeFigures:
    """What was measured for step 1."""

    slopes: tuple[Slope, ...]
    """Of each long answer; empty when none could be timed."""
    first_step_seconds: float
    """Median over the first quarter of the answer."""
    last_step_seconds: float
    """Median over its last quarter."""
    num_rows: int
    """At the end of the answer."""
    token_bytes: int
    """Of keys and values, in all layers."""
    block_size: int
    read_bytes_per_second: float
    """Of the machine's memory."""
    attention_seconds_per_row: float
    """Of this worker's attention on a pool of its own, all layers."""


def slope_of(rows: Sequence[int], seconds: Sequence[float]) -> Slope:
    """The median growth between points that lie half of the answer apart.

    Theil's incomplete method ("A rank-invariant method of linear and polynomial regression analysis", 1950):
    every point is in one pair, so the pairs are independent and the range follows from the binomial
    distribution of the pairs above the median. Half of the points may be wild. O(n log n).

    Requires: at least LEAST_POINTS points, rows ascending.
    """
    assert len(rows) == len(seconds) >= LEAST_POINTS
    half = len(rows) // 2
    growths = sorted((seconds[i + half] - seconds[i]) / (rows[i + half] - rows[i]) for i in range(half))
    reach = math.ceil(0.98 * math.sqrt(half))  # 1.96 standard deviations of a fair coin thrown `half` times
    return Slope(
        statistics.median(growths),
        growths[max(0, half // 2 - reach)],
        growths[min(half - 1, half // 2 + reach)],
    )


def check_slope(figures: SlopeFigures) -> Finding:
    """Compares the ranges of the slopes with the least slope that is wrong.

    Accuses when every answer's range is above it, acquits when one answer's range is below it.
    """
    finding = partial(Finding, step=1, name="slope")
    if not figures.slopes:
        return finding(
            verdict=Verdict.UNKNOWN,
            sentence=f"No answer of at least {LEAST_POINTS} steps could be timed.",
            evidence={},
            advice="Give the model a longer context, or examine it while nobody else uses it.",
        )
    measured = statistics.median(slope.value for slope in figures.slopes)
    by_bandwidth = figures.token_bytes / figures.read_bytes_per_second
    explained = max(by_bandwidth, figures.attention_seconds_per_row)
    least_that_matters = LEAST_GROWTH_SHARE * figures.first_step_seconds / figures.num_rows
    limit = max(MOST_TIMES_EXPLAINED * explained, explained + least_that_matters)
    low, high = min(slope.low for slope in figures.slopes), min(slope.high for slope in figures.slopes)
    finding = partial(
        finding,
        evidence={
            "seconds_per_row": measured,
            "seconds_per_row_by_bandwidth": by_bandwidth,
            "seconds_per_row_by_attention": figures.attention_seconds_per_row,
            "times_explained": measured / explained,
            "least_wrong_seconds_per_row": limit,
            "num_answers": len(figures.slopes),
            "num_rows": figures.num_rows,
            "first_step_seconds": figures.first_step_seconds,
            "last_step_seconds": figures.last_step_seconds,
            "token_bytes": figures.token_bytes,
            "read_bytes_per_second": figures.read_bytes_per_second,
        },
    )
    grew = f"A step grows by {_micro(measured)} a row; reading the KV of a row explains {_micro(explained)}"
    if low > limit:
        return finding(
            verdict=Verdict.FAULT,
            sentence=f"{grew}: {measured / explained:.1f} times as much.",
            **_cause(figures.block_size),
        )
    if high > limit:
        return finding(
            verdict=Verdict.UNKNOWN,
            sentence=f"Too noisy for a slope: somewhere from {_micro(low)} to {_micro(high)} a row, where "
            f"{_micro(limit)} would be wrong.",
            advice="Measure longer, without --quick, while the machine does nothing else.",
        )
    return finding(verdict=Verdict.HEALTHY, sentence=f"{grew}.")


class _Cause(TypedDict):
    """Of a slope that is wrong."""

    pitfall: str
    advice: str


def _cause(block_size: int) -> _Cause:
    """Tables grow by an entry with every block: where blocks are tiny, that is enough of a cause."""
    if block_size < LEAST_BLOCK_SIZE:
        return _Cause(pitfall="tiny-blocks", advice="Start the worker with --block-size 16, 32 or 64.")
    return _Cause(
        pitfall="growing-copy",
        advice="Something beside attention grows with the answer: look at the copies of step 4.",
    )


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} us"
