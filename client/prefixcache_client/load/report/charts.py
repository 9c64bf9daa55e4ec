"""The charts of a measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from prefixcache_client.load.measurement import Measurement, RequestResult
from prefixcache_client.load.report.chart import Axis, Chart, Point, Series
from prefixcache_client.load.report.timeline import Interval, timeline
from prefixcache_client.load.report.units import short_number, short_seconds

_MOST_DOTS = 1_000
_CURVE_POINTS = 200


def report_charts(measurement: Measurement) -> tuple[Chart, ...]:
    """Those that have at least one point."""
    answered = [result for result in measurement.results if result.error is None]
    intervals = timeline(measurement)
    by_time = Axis(
        label="seconds since the load began", text=short_number, least=0.0, most=measurement.seconds
    )
    by_plan = replace(by_time, label="planned for, in seconds since the load began")
    has_failures = len(answered) < len(measurement.results)
    charts = (
        _latency_curves(answered),
        Chart(
            title="First token",
            x=by_plan,
            y=Axis(label="seconds", text=short_seconds, least=0.0),
            series=(
                Series("each request", thinned(_first_tokens(answered), _MOST_DOTS), "dots"),
                Series(
                    "p90", _line(intervals, lambda i: i.first_token.p90 if i.first_token else None), "dashed"
                ),
                Series("p50", _line(intervals, lambda i: i.first_token.p50 if i.first_token else None)),
            ),
        ),
        Chart(
            title="Requests per second",
            x=by_time,
            y=Axis(label="per second", text=short_number, least=0.0),
            series=(
                Series("planned", _line(intervals, lambda i: i.planned_per_second), "dashed"),
                Series("answered", _line(intervals, lambda i: i.answered_per_second)),
                *(
                    (Series("failed", _line(intervals, lambda i: i.failed_per_second)),)
                    if has_failures
                    else ()
                ),
            ),
        ),
        Chart(
            title="Output tokens per second",
            x=by_time,
            y=Axis(label="per second", text=short_number, least=0.0),
            series=(Series("tokens", _line(intervals, lambda i: i.output_tokens_per_second), "area"),),
        ),
        Chart(
            title="Requests in flight",
            x=by_time,
            y=Axis(label="requests", text=short_number, least=0.0),
            series=(Series("on average", _line(intervals, lambda i: i.in_flight), "area"),),
        ),
        Chart(
            title="Cached share of the prompts",
            x=by_plan,
            y=Axis(label="share", text=_percent, least=0.0, most=1.0),
            series=(Series("cached", _line(intervals, lambda i: i.cached_share), "area"),),
        ),
    )
    return tuple(chart for chart in charts if _has_points(chart))


def _latency_curves(answered: Sequence[RequestResult]) -> Chart:
    return Chart(
        title="Share of answers within a time",
        x=Axis(label="time (logarithmic)", text=short_seconds, is_logarithmic=True),
        y=Axis(label="share", text=_percent, least=0.0, most=1.0),
        series=(
            Series("first token", _curve(result.first_token_seconds for result in answered)),
            Series("time per token", _curve(result.seconds_per_token for result in answered), "dashed"),
            Series("end to end", _curve(result.total_seconds for result in answered)),
        ),
    )


def _curve(values: Iterable[float | None]) -> list[Point]:
    """The share of values up to each one; of many, only some. A logarithm needs values above 0."""
    ordered = sorted(value for value in values if value is not None and value > 0)
    return thinned([(value, (i + 1) / len(ordered)) for i, value in enumerate(ordered)], _CURVE_POINTS)


def _first_tokens(answered: Iterable[RequestResult]) -> list[Point]:
    return [
        (result.planned, result.first_token_seconds)
        for result in answered
        if result.first_token_seconds is not None
    ]


def _line(intervals: Iterable[Interval], value: Callable[[Interval], float | None]) -> list[Point]:
    return [((interval.start + interval.end) / 2, value(interval)) for interval in intervals]


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Every so many-th, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[i * (len(points) - 1) // (most - 1)] for i in range(most)]


def _has_points(chart: Chart) -> bool:
    return any(y is not None for series in chart.series for _, y in series.points)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
