"""Figures: what the demo reports, as a table and as JSON rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table

from prefixcache_client.command_line.output import seconds, share, size


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, and one row of the JSON."""

    name: str
    value: float
    unit: str
    """"tokens", "s", "bytes", "%" and so on."""
    spread: tuple[float, float] | None = None
    """The least and the greatest of the values that `value` is the median of."""
    note: str = ""


def figures_table(figures: Iterable[Figure], *, title: str) -> Table:
    """The figures as a table."""
    table = Table("", "", "", title=title, title_style="bold", show_header=False)
    table.columns[1].justify = "right"
    for figure in figures:
        spread = (
            "" if figure.spread is None else " to ".join(_shown(end, figure.unit) for end in figure.spread)
        )
        table.add_row(
            figure.name, _shown(figure.value, figure.unit), ", ".join(filter(None, (spread, figure.note)))
        )
    return table


def share_of_unshared(part: float, unshared: float) -> str:
    """The note of a figure whose next row is the value without sharing."""
    return f"{share(part, unshared)} of that without sharing"


def _shown(value: float, unit: str) -> str:
    match unit:
        case "s":
            return seconds(value)
        case "bytes":
            return size(value)
        case "x" | "%" | "tokens/s":
            return f"{value:,.1f} {unit}"
        case _:
            return f"{value:,.0f} {unit}".rstrip()
