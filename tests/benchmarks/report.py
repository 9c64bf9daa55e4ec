"""How every benchmark tells its figures: one table, the same rows as JSON, and the exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure, and the bar it has to reach if there is one."""

    name: str
    value: float
    unit: str
    spread: str | None = None
    """Lowest and highest of the repetitions."""
    bar: str | None = None
    holds: bool | None = None
    """Whether the bar is reached; None without a bar."""
    note: str = ""


def print_rows(rows: Sequence[Row], json_path: str | None = None) -> None:
    """Print the rows as a table; with `json_path`, also write them there as a list of objects.

    A benchmark ends with this: raises SystemExit(1), with everything written, when a row misses its bar.
    """
    verdicts = {True: "holds", False: "FAILS", None: ""}
    cells = [
        (
            row.name,
            f"{row.value:.4g} {row.unit}",
            row.spread or "",
            row.bar or "",
            verdicts[row.holds],
            row.note,
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if json_path is not None:
        text = json.dumps([asdict(row) for row in rows], indent=2) + "\n"
        Path(json_path).write_text(text, encoding="utf-8")
    if any(row.holds is False for row in rows):
        sys.exit(1)
