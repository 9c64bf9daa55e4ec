"""A recorded baseline: every round of every scenario, and all that they were measured with."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from prefixcache_client.baseline.scenario import Scenario
from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.read_json import read_json

FORMAT = "prefixcache baseline 1"


class FigureKind(NamedTuple):
    """One figure that every round has."""

    name: str
    unit: str
    more_is_better: bool | None
    """None: neither is."""


FIGURES = (
    FigureKind("output", "tokens/s", True),
    FigureKind("first token", "s", False),
    FigureKind("per token", "s", False),
    FigureKind("KV held", "bytes", False),
    FigureKind("pool in use", "share", None),
)
"""Of the two last ones the peak of the round."""

_T_95: tuple[float, ...] = (
    *(12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048),
)
"""Student's t for two-sided 95 %, by degrees of freedom from 1. Beyond, the last value: a little too wide."""


class Interval(NamedTuple):
    """A mean, and where it lies with 95 % confidence if rounds differ by chance alone, as a normal does."""

    mean: float
    low: float
    high: float

    def parts_from(self, other: Interval) -> bool:
        """Whether the two have no value in common."""
        return self.high < other.low or other.high < self.low


def interval(values: Sequence[float]) -> Interval:
    """Student's interval of the mean. Requires at least two values."""
    mean = statistics.fmean(values)
    t = _T_95[min(len(values) - 2, len(_T_95) - 1)]
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioRounds:
    """All rounds of one scenario."""

    scenario: Scenario
    values: Mapping[str, tuple[float, ...]]
    """By the figure's name, a value for each round."""

    def interval(self, figure: str) -> Interval:
        return interval(self.values[figure])


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One baseline."""

    label: str
    """What is special about it that no setting says, such as a change of the code; may be empty."""
    began: str
    """In UTC, ISO 8601."""
    settings: Mapping[str, str]
    """The worker's flags, all of them."""
    machine: Mapping[str, str]
    """What it runs on."""
    model: Mapping[str, Any]
    """What the worker says of its model and limits."""
    read_bytes_per_second: tuple[float, ...]
    """Speed of the machine's memory, measured by the worker before each round."""
    rounds: tuple[ScenarioRounds, ...]

    def write(self, path: Path) -> None:
        """As JSON. Raises OSError."""
        path.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")


def read_recording(path: Path) -> Recording:
    """What `Recording.write` wrote. Raises PrefixCacheClientError when it is nothing such, or OSError."""
    try:
        values = read_json(path.read_bytes())
        if values.pop("format") != FORMAT:
            raise ValueError
        rounds = tuple(
            ScenarioRounds(
                scenario=Scenario(**entry["scenario"]),
                values={kind.name: _rounds(entry["values"][kind.name]) for kind in FIGURES},
            )
            for entry in values.pop("rounds")
        )
        speeds = _rounds(values.pop("read_bytes_per_second"))
        return Recording(rounds=rounds, read_bytes_per_second=speeds, **values)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PrefixCacheClientError(
            f"{path} is no baseline of this release; make one with `prefixcache baseline record {path}`"
        ) from None


def _rounds(values: Sequence[float]) -> tuple[float, ...]:
    if len(values) < 2:
        raise ValueError(f"{len(values)} rounds")
    return tuple(map(float, values))
