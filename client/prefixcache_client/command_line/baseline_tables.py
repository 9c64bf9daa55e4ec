"""Baselines as tables."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from prefixcache_client.baseline.comparison import BaselineComparison, Effect
from prefixcache_client.baseline.recording import FIGURES, FigureKind, Interval, Recording
from prefixcache_client.command_line.output import count, size

_STYLES = {Effect.BETTER: "green", Effect.WORSE: "red", Effect.CHANGED: "yellow", Effect.NONE: "dim"}


def recording_table(recording: Recording) -> Table:
    """A row for each scenario: mean and half of its interval."""
    rounds = len(recording.read_bytes_per_second)
    title = f"baseline{': ' if recording.label else ''}{recording.label}, {count(rounds, 'round')}"
    table = Table("", *(kind.name for kind in FIGURES), title=title, title_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for entry in recording.rounds:
        cells = (_shown(entry.interval(kind.name), kind) for kind in FIGURES)
        table.add_row(entry.scenario.name, *cells)
    return table


def comparison_table(comparison: BaselineComparison) -> RenderableType:
    """What changed, every figure, and the verdict."""
    table = Table("", "", "before", "after", "ratio", "", title="baselines compared", title_style="bold")
    for column in table.columns[2:5]:
        column.justify = "right"
    last = ""
    for figure in comparison.figures:
        name = figure.scenario if figure.scenario != last else ""
        if name and last:
            table.add_section()
        last = figure.scenario
        table.add_row(
            name,
            figure.kind.name,
            _shown(figure.before, figure.kind),
            _shown(figure.after, figure.kind),
            "-" if figure.ratio is None else f"{figure.ratio:.2f}",
            Text(figure.effect.value, style=_STYLES[figure.effect]),
        )
    lines = [Text(f"changed  {change}") for change in comparison.changes] or [Text("changed  nothing")]
    lines += [Text(f"left out  {name}: not the same in both") for name in comparison.only_in_one]
    return Group(table, *lines, Text(comparison.verdict, style="bold"))


def _shown(interval: Interval, kind: FigureKind) -> str:
    """The mean, and how far its interval reaches."""
    half = interval.high - interval.mean
    return f"{_number(interval.mean, kind)} ± {_number(half, kind)} {_unit(kind)}".rstrip()


def _number(value: float, kind: FigureKind) -> str:
    match kind.unit:
        case "s":
            return f"{1000 * value:,.1f}"
        case "share":
            return f"{100 * value:.1f}"
        case "bytes":
            return size(value)
        case _:
            return f"{value:,.1f}"


def _unit(kind: FigureKind) -> str:
    return {"s": "ms", "share": "%", "bytes": ""}.get(kind.unit, kind.unit)
