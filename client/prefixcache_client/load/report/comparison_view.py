"""A comparison on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from prefixcache_client.load.report.compare import ChangedSetting, ComparedFigure, Comparison
from prefixcache_client.load.report.tables import ReportTable
from prefixcache_client.load.report.terminal import table_view
from prefixcache_client.load.report.units import NONE, number, seconds, share


def comparison_view(comparison: Comparison) -> Group:
    """What was changed, the figures, and before both what speaks against comparing them."""
    parts: list[RenderableType] = [Text(warning, style="yellow") for warning in comparison.warnings]
    if comparison.changes:
        parts.append(table_view(_changes_table(comparison.changes)))
    parts.append(table_view(_figures_table(comparison)))
    return Group(*parts)


def _changes_table(changes: Sequence[ChangedSetting]) -> ReportTable:
    return ReportTable(
        "Settings that differ",
        ("of", "setting", "first", "second"),
        tuple(
            (change.of, change.name, _setting(change.first), _setting(change.second)) for change in changes
        ),
    )


def _figures_table(comparison: Comparison) -> ReportTable:
    percent = f"{100 * comparison.confidence:g} %"
    return ReportTable(
        "Figures",
        ("", "first", "second", "difference", f"{percent} interval", "verdict"),
        tuple(
            (
                figure.name,
                _shown(figure, figure.first),
                _shown(figure, figure.second),
                _shown(figure, figure.difference, signed=True),
                NONE
                if figure.interval is None
                else " to ".join(_shown(figure, end, signed=True) for end in figure.interval),
                _verdict(figure),
            )
            for figure in comparison.figures
        ),
        f"second minus first; of twenty {percent} intervals, one leaves out 0 though nothing has changed",
    )


def _verdict(figure: ComparedFigure) -> str:
    if figure.interval is None:
        return f"no interval: {figure.remark}"
    if not figure.is_shown:
        return "no difference shown"
    return "higher" if figure.interval.low > 0 else "lower"


def _shown(figure: ComparedFigure, value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return NONE
    match figure.unit:
        case "s":
            text = seconds(value)
        case "share":
            text = f"{100 * value:.1f} points" if signed else share(value)
        case _:
            text = f"{number(value)} {figure.unit}"
    return f"+{text}" if signed and value > 0 else text


def _setting(value: str | int | float | None) -> str:
    return NONE if value is None else str(value)
