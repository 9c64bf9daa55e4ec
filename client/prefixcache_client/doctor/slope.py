"""Step 1: does the time per token grow with the position, and by more than attention explains?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypedDict

from prefixcache_client.doctor.finding import Finding, Verdict
from prefixcache_client.doctor.sizing import LEAST_BLOCK_SIZE

MOST_TIMES_EXPLAINED = 1.3
"""A slope up to so many times what reading the KV explains is healthy."""
LEAST_GROWTH_SHARE = 0.1
"""Of a step's time, from few rows to many: where attention is nearly nothing, a little bookkeeping is many
times as much."""
LEAST_PAIRS = 8
"""Fewer tell nothing about a slope."""


class StepPair(NamedTuple):
    """Seconds of a step behind few rows and of one behind many, measured directly after each other."""

    few_seconds: float
    many_seconds: float


class StepTimes(NamedTuple):
    """One measurement."""

    pairs: Sequence[StepPair]
    """In the order of time."""
    num_rows_between: int
    """More behind many than behind few."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth of the time of a step with the rows before it, in seconds per row."""

    value: float
    low: float
    """With `high`: 95 of 100 such ranges hold the true slope, if the noise of each pair is its own."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlopeFigures:
    """What was measured for step 1."""

    measurements: tuple[StepTimes, ...]
    """Empty when none could be made."""
    token_bytes: int
    """Of keys and values, in all layers."""
    block_size: int
    read_bytes_per_second: float
    """Of the machine's memory."""
    attention_seconds_per_row: float
    """Of this worker's attention on a pool of its own, all layers."""


def slope_of(times: StepTimes) -> Slope:
    """The median growth within a pair.

    The range is that of the sign test (Dixon and Mood, "The statistical sign test", 1946): the number of
    pairs above the true median is that of heads when a fair coin is thrown. Half of the pairs may be wild,
    and what changes slowly from pair to pair is in both of each. O(n log n).

    Requires: at least LEAST_PAIRS pairs.
    """
    assert len(times.pairs) >= LEAST_PAIRS
    growths = sorted((many - few) / times.num_rows_between for few, many in times.pairs)
    middle = len(growths) // 2
    reach = math.ceil(0.98 * math.sqrt(len(growths)))  # 1.96 standard deviations of the number of heads
    return Slope(
        statistics.median(growths),
        growths[max(0, middle - reach)],
        growths[min(len(growths) - 1, middle + reach)],
    )


def check_slope(figures: SlopeFigures) -> Finding:
    """Compares the ranges of the slopes with the least slope that is wrong.

    Accuses when every measurement's range is above it, acquits when one's is below it.
    """
    finding = partial(Finding, step=1, name="slope")
    if not figures.measurements:
        return finding(
            verdict=Verdict.UNKNOWN,
            sentence="The context is too short to tell a slope.",
            evidence={},
        )
    slopes = [slope_of(times) for times in figures.measurements]
    pairs = [pair for times in figures.measurements for pair in times.pairs]
    few_seconds = statistics.median(pair.few_seconds for pair in pairs)
    num_rows = figures.measurements[0].num_rows_between
    measured = statistics.median(slope.value for slope in slopes)
    by_bandwidth = figures.token_bytes / figures.read_bytes_per_second
    explained = max(by_bandwidth, figures.attention_seconds_per_row)
    least_that_matters = LEAST_GROWTH_SHARE * few_seconds / num_rows
    limit = max(MOST_TIMES_EXPLAINED * explained, explained + least_that_matters)
    low, high = min(slope.low for slope in slopes), min(slope.high for slope in slopes)
    finding = partial(
        finding,
        evidence={
            "seconds_per_row": measured,
            "seconds_per_row_by_bandwidth": by_bandwidth,
            "seconds_per_row_by_attention": figures.attention_seconds_per_row,
            "times_explained": measured / explained,
            "least_wrong_seconds_per_row": limit,
            "num_measurements": len(slopes),
            "num_pairs": len(pairs),
            "num_rows_between": num_rows,
            "few_rows_step_seconds": few_seconds,
            "many_rows_step_seconds": statistics.median(pair.many_seconds for pair in pairs),
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
        advice="Something beside attention grows with the rows: look at the copies of step 4.",
    )


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} us"
