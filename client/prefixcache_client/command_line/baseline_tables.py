"""Baselines as tables that fit a terminal of 80 columns."""

from __future__ import annotations

from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from prefixcache_client.baseline.comparison import BaselineComparison, Effect
from prefixcache_client.baseline.recording import FIGURES, FigureKind, Interval, Recording
from prefixcache_client.command_line.output import count

_STYLES = {Effect.BETTER: "green", Effect.WORSE: "red", Effect.CHANGED: "yellow", Effect.NONE: "dim"}


class _Scale(NamedTuple):
    """How a unit is shown."""

    unit: str
    factor: float


_SCALES = {
    "tokens/s": _Scale("tokens/s", 1),
    "s": _Scale("ms", 1000),
    "bytes": _Scale("MiB", 1 / (1 << 20)),
    "share": _Scale("%", 100),
}


def recording_table(recording: Recording) -> Table:
    """A row for each scenario: means, and how far their intervals reach."""
    rounds = len(recording.read_bytes_per_second)
    title = f"baseline{': ' if recording.label else ''}{recording.label}, {count(rounds, 'round')}"
    headings = (f"{kind.name}, {_SCALES[kind.unit].unit}" for kind in FIGURES)
    table = Table("", *headings, title=title, title_style="bold")
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for entry in recording.rounds:
        cells = (_shown(entry.interval(kind.name), kind, between="±") for kind in FIGURES)
        table.add_row(entry.scenario.name, *cells)
    return table


def comparison_table(comparison: BaselineComparison) -> RenderableType:
    """What changed, every figure, and the verdict."""
    table = Table(
        "", "before", "after", "ratio", "difference", title="baselines compared", title_style="bold"
    )
    for column in table.columns[1:4]:
        column.justify = "right"
    last = ""
    for figure in comparison.figures:
        if figure.scenario != last:
            if last:
                table.add_section()
            table.add_row(Text(figure.scenario, style="bold"))
            last = figure.scenario
        table.add_row(
            f"  {figure.kind.name}, {_SCALES[figure.kind.unit].unit}",
            _shown(figure.before, figure.kind),
            _shown(figure.after, figure.kind),
            "-" if figure.ratio is None else f"{figure.ratio:.2f}",
            Text(figure.effect.value, style=_STYLES[figure.effect]),
        )
    lines = [Text(f"changed  {change}") for change in comparison.changes] or [Text("changed  nothing")]
    lines += [Text(f"left out  {name}: not the same in both") for name in comparison.only_in_one]
    return Group(table, *lines, Text(comparison.verdict, style="bold"))


def _shown(interval: Interval, kind: FigureKind, *, between: str = " ± ") -> str:
    """The mean, and how far its interval reaches, if it reaches anywhere."""
    factor = _SCALES[kind.unit].factor
    half = interval.high - interval.mean
    spread = f"{between}{_number(half * factor)}" if half else ""
    return f"{_number(interval.mean * factor)}{spread}"


def _number(value: float) -> str:
    """Three digits, and no more than one behind the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
