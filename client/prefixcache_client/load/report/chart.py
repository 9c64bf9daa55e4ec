"""Line charts as SVG that takes its colours, and light or dark, from the page around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Literal

_WIDTH, _HEIGHT = 420.0, 236.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 12.0, 10.0, 40.0
_LEAST_SPAN = 1e-9
"""Of the least value: what lies closer together is one value."""
_MOST_TICKS = 6

Point = tuple[float, float | None]
"""Without a value, the line has a gap."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points from left to right."""

    name: str
    points: Sequence[Point]
    style: Literal["line", "dashed", "area", "dots"] = "line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What stands along one side."""

    label: str
    text: Callable[[float], str]
    """Of a tick's value."""
    least: float | None = None
    """None: of the points."""
    most: float | None = None
    is_logarithmic: bool = False
    """Values above 0 only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Series over one pair of axes."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]


def svg(chart: Chart) -> str:
    """An `<svg>` element. Its classes `series-1` and so on, `grid` and `tick` are for the page's style sheet.

    Requires: at least one point with a value.
    """
    points = [(x, y) for series in chart.series for x, y in series.points if y is not None]
    across = _Scale(chart.x, [x for x, _ in points], start=_LEFT, end=_WIDTH - _RIGHT)
    up = _Scale(chart.y, [y for _, y in points], start=_HEIGHT - _BOTTOM, end=_TOP)
    names = ", ".join(series.name for series in chart.series)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img"'
        f' aria-label="{escape(f"{chart.title}: {names}, by {chart.x.label}")}">',
        *_grid(across, up),
    ]
    for number, series in enumerate(chart.series, start=1):
        parts += _drawn(series, number, across, up)
    parts.append(
        f'<text class="label" x="{(_LEFT + _WIDTH - _RIGHT) / 2:g}" y="{_HEIGHT - 6:g}"'
        f' text-anchor="middle">{escape(chart.x.label)}</text></svg>'
    )
    return "".join(parts)


class _Scale:
    """From values to places."""

    def __init__(self, axis: Axis, values: Sequence[float], *, start: float, end: float) -> None:
        self.axis = axis
        least = min(values) if axis.least is None else axis.least
        most = max(values) if axis.most is None else axis.most
        if most <= least * (1 + _LEAST_SPAN):  # on a logarithmic axis the two could have one place
            most = least * 2 if least > 0 else least + 1
        self.ticks = _log_ticks(least, most) if axis.is_logarithmic else _ticks(least, most)
        if axis.most is None and not axis.is_logarithmic and self.ticks[-1] < most:
            self.ticks.append(2 * self.ticks[-1] - self.ticks[-2])  # a whole step above the highest value
            most = self.ticks[-1]
        self._of = math.log10 if axis.is_logarithmic else float
        self._least, self._span = self._of(least), self._of(most) - self._of(least)
        self._start, self._length = start, end - start

    def at(self, value: float) -> float:
        return self._start + self._length * (self._of(value) - self._least) / self._span


def _ticks(least: float, most: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten; at least two."""
    rough = (most - least) / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough)
    first = math.ceil(least / step - 1e-9)
    return [i * step for i in range(first, math.floor(most / step + 1e-9) + 1)]


def _log_ticks(least: float, most: float) -> list[float]:
    """Powers of ten; where there are few, their doubles and fivefolds too."""
    for multiples in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0)):
        powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
        ticks = [m * 10.0**p for p in powers for m in multiples if least <= m * 10.0**p <= most]
        if len(ticks) >= 4:
            return ticks
    return ticks


def _grid(across: _Scale, up: _Scale) -> Iterator[str]:
    left, right, bottom = _LEFT, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for value in up.ticks:
        y = up.at(value)
        yield f'<path class="grid" d="M{left:g} {y:.1f}H{right:g}"/>'
        yield (
            f'<text class="tick" x="{left - 6:g}" y="{y + 4:.1f}" text-anchor="end">'
            f"{escape(up.axis.text(value))}</text>"
        )
    for value in across.ticks:
        x = across.at(value)
        yield f'<path class="grid" d="M{x:.1f} {bottom:g}v4"/>'
        yield (
            f'<text class="tick" x="{x:.1f}" y="{bottom + 17:g}" text-anchor="middle">'
            f"{escape(across.axis.text(value))}</text>"
        )


def _drawn(series: Series, number: int, across: _Scale, up: _Scale) -> Iterator[str]:
    if series.style == "dots":
        dots = "".join(f"M{across.at(x):.1f} {up.at(y):.1f}h0" for x, y in series.points if y is not None)
        yield f'<path class="dots series-{number}" d="{dots}"/>'
        return
    for has_value, run in groupby(series.points, key=lambda point: point[1] is not None):
        if not has_value:
            continue
        places = [(across.at(x), up.at(y)) for x, y in run if y is not None]
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        if len(places) == 1:  # a line of one point would not be seen
            line += "h0.1"
        style = series.style
        if style == "area":
            floor, style = f"{_HEIGHT - _BOTTOM:g}", "line"
            yield f'<path class="area series-{number}" d="M{places[0][0]:.1f} {floor}L{line}V{floor}Z"/>'
        yield f'<path class="{style} series-{number}" d="M{line}"/>'
