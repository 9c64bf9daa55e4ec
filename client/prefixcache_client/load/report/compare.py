"""What differs between two measurements, and whether it is more than chance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from prefixcache_client.load.measurement import Measurement, RequestResult
from prefixcache_client.load.report.bootstrap import (
    CONFIDENCE,
    Interval,
    Percentile,
    RatioOfSums,
    Statistic,
    intervals,
)
from prefixcache_client.load.report.distribution import Distribution
from prefixcache_client.load.report.slo import Slo
from prefixcache_client.load.report.summary import summarize

LEAST_SESSIONS = 20
"""With fewer, an interval would be too narrow to trust."""
LEAST_BEYOND = 5
"""So many requests have to lie above a percentile, or its interval says little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """One figure of both measurements."""

    name: str
    unit: str
    """"s", "/s" or "share"."""
    first: float | None
    second: float | None
    interval: Interval | None
    """Of the difference."""
    remark: str
    """Why there is no interval; empty when there is one."""

    @property
    def difference(self) -> float | None:
        """Second minus first."""
        return None if self.first is None or self.second is None else self.second - self.first

    @property
    def is_shown(self) -> bool:
        """Whether the interval tells the difference from none."""
        return self.interval is not None and not self.interval.low <= 0 <= self.interval.high


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedSetting:
    """A setting that is not the same. None: the measurement does not have it."""

    of: str
    """"workload", "arrivals" or "target"."""
    name: str
    first: str | int | float | None
    second: str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two measurements side by side."""

    figures: tuple[ComparedFigure, ...]
    changes: tuple[ChangedSetting, ...]
    warnings: tuple[str, ...]
    """Why the figures should not be compared, or only with care; a sentence each."""
    confidence: float


def compare(first: Measurement, second: Measurement, *, slo: Slo | None = None, seed: int = 0) -> Comparison:
    """The differences, second minus first, with their intervals; `bootstrap` says how they are made.

    Each interval holds the true difference in 95 of 100 comparisons like this one: of twenty figures, one
    may seem to differ though nothing has changed. Sessions count as independent of each other, which they are
    less and less as the server comes near its limit and they wait in one queue: then only repeated
    measurements tell. What a measurement has one value of, such as its throughput, gets no interval.
    O(resamples * requests).
    """
    sides = (_Side(first, slo or Slo()), _Side(second, slo or Slo()))
    candidates = [*_latency_candidates(sides), *_share_candidates(sides)]
    measured = iter(
        intervals([candidate.pair for candidate in candidates if candidate.pair is not None], seed=seed)
    )
    figures = [
        replace(candidate.figure, interval=next(measured)) if candidate.pair is not None else candidate.figure
        for candidate in candidates
    ]
    changes = tuple(_changes(first, second))
    return Comparison(
        figures=(*figures, *_rates(sides)),
        changes=changes,
        warnings=tuple(_warnings(sides, changes)),
        confidence=CONFIDENCE,
    )


class _Candidate(NamedTuple):
    """A figure, and what its interval is made of; None: it gets none."""

    figure: ComparedFigure
    pair: tuple[Statistic, Statistic] | None


class _Side:
    """A measurement, session by session."""

    def __init__(self, measurement: Measurement, slo: Slo) -> None:
        self.measurement = measurement
        self.summary = summarize(measurement, slo)
        sessions: dict[int, list[RequestResult]] = defaultdict(list)
        for result in measurement.results:
            sessions[result.session].append(result)
        self.sessions = tuple(sessions.values())

    def values(self, of: Callable[[RequestResult], float | None]) -> list[list[float]]:
        """What is known of the answered requests of each session."""
        return [
            [value for result in session if result.error is None and (value := of(result)) is not None]
            for session in self.sessions
        ]

    def sums(self, of: Callable[[RequestResult], tuple[float, float]]) -> list[tuple[float, float]]:
        """Numerator and denominator, summed over each session."""
        pairs = [[of(result) for result in session] for session in self.sessions]
        return [(sum(above for above, _ in each), sum(below for _, below in each)) for each in pairs]


_Sides = tuple[_Side, _Side]


def _latency_candidates(sides: _Sides) -> Iterator[_Candidate]:
    first, second = (side.summary.latencies for side in sides)
    yield from _of_distribution(
        "first token",
        sides,
        (first.first_token, second.first_token),
        lambda result: result.first_token_seconds,
    )
    yield from _of_distribution(
        "time per token", sides, (first.per_token, second.per_token), lambda result: result.seconds_per_token
    )
    yield from _of_distribution(
        "end to end", sides, (first.total, second.total), lambda result: result.total_seconds
    )


def _of_distribution(
    name: str,
    sides: _Sides,
    distributions: tuple[Distribution | None, Distribution | None],
    of: Callable[[RequestResult], float | None],
) -> Iterator[_Candidate]:
    first, second = (side.values(of) for side in sides)
    counts = [0 if values is None else values.count for values in distributions]
    for figure, percent in (("mean", None), ("p50", 50), ("p90", 90), ("p99", 99)):
        remark = _why_no_interval(sides, min(counts))
        if not remark and percent is not None and min(counts) * (100 - percent) / 100 < LEAST_BEYOND:
            remark = f"it needs {100 * LEAST_BEYOND // (100 - percent)} answers in both"
        pair: tuple[Statistic, Statistic] | None = None
        if not remark and percent is None:
            pair = (_mean(first), _mean(second))
        elif not remark and percent is not None:
            pair = (Percentile(first, percent), Percentile(second, percent))
        values = [None if each is None else getattr(each, figure) for each in distributions]
        yield _Candidate(_figure(f"{name}, {figure}", "s", values, remark), pair)


def _mean(sessions: Sequence[Sequence[float]]) -> RatioOfSums:
    return RatioOfSums([(sum(values), len(values)) for values in sessions])


def _share_candidates(sides: _Sides) -> Iterator[_Candidate]:
    yield _share(
        "cached share of the prompts",
        sides,
        [side.summary.tokens.cached_share for side in sides],
        lambda result: (
            (0, 0)
            if result.error is not None or result.cached_tokens is None
            else (result.cached_tokens, result.prompt_tokens or 0)
        ),
    )
    yield _share(
        "answered",
        sides,
        [
            side.summary.num_answered / side.summary.num_requests if side.summary.num_requests else None
            for side in sides
        ],
        lambda result: (result.error is None, 1),
    )
    slo = sides[0].summary.slo
    if slo.has_limits:
        yield _share(
            "within the limits",
            sides,
            [side.summary.goodput.share if side.summary.goodput else None for side in sides],
            lambda result: (slo.is_kept(result), 1),
        )


def _share(
    name: str,
    sides: _Sides,
    values: Sequence[float | None],
    of: Callable[[RequestResult], tuple[float, float]],
) -> _Candidate:
    remark = _why_no_interval(sides, 0 if None in values else 1)
    pair = None if remark else (RatioOfSums(sides[0].sums(of)), RatioOfSums(sides[1].sums(of)))
    return _Candidate(_figure(name, "share", values, remark), pair)


def _rates(sides: _Sides) -> Iterator[ComparedFigure]:
    first, second = (side.summary.throughput for side in sides)
    for name, field in (
        ("answered requests", "requests_per_second"),
        ("output tokens", "output_tokens_per_second"),
        ("prompt tokens", "prompt_tokens_per_second"),
    ):
        values = [None if each is None else getattr(each, field) for each in (first, second)]
        yield _figure(name, "/s", values, "one value of each measurement")


def _why_no_interval(sides: _Sides, num_values: int) -> str:
    if not num_values:
        return "not measured in both"
    num_sessions = min(len(side.sessions) for side in sides)
    return f"it needs {LEAST_SESSIONS} sessions in both" if num_sessions < LEAST_SESSIONS else ""


def _figure(name: str, unit: str, values: Sequence[float | None], remark: str) -> ComparedFigure:
    first, second = values
    return ComparedFigure(name=name, unit=unit, first=first, second=second, interval=None, remark=remark)


def _changes(first: Measurement, second: Measurement) -> Iterator[ChangedSetting]:
    for of in ("workload", "arrivals", "target"):
        one, other = getattr(first, of), getattr(second, of)
        for name in dict.fromkeys((*one, *other)):
            if one.get(name) != other.get(name):
                yield ChangedSetting(of=of, name=name, first=one.get(name), second=other.get(name))


def _warnings(sides: _Sides, changes: Sequence[ChangedSetting]) -> Iterator[str]:
    of_target = {(change.name, change.first, change.second) for change in changes if change.of == "target"}
    for of in ("workload", "arrivals"):
        names = [
            change.name
            for change in changes
            if change.of == of
            and change.name != "seed"
            and (change.name, change.first, change.second) not in of_target  # the load took them over
        ]
        if names:
            yield (
                f"Not comparable: not the same {of} ({', '.join(names)}), so a difference need not"
                " come from the server."
            )
    for which, side in zip(("first", "second"), sides, strict=True):
        if side.measurement.was_interrupted:
            yield f"The {which} measurement was broken off."
        if side.summary.num_answered < side.summary.num_requests:
            num_failed = side.summary.num_requests - side.summary.num_answered
            yield (
                f"In the {which} measurement {num_failed:,} of {side.summary.num_requests:,} requests failed:"
                " its latencies are those of the others."
            )
        if side.summary.sending.num_late:
            yield f"In the {which} measurement {side.summary.sending.num_late:,} requests were sent late."
