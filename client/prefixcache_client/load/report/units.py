"""Figures as people read them, with three digits; a dash for what cannot be told."""

from __future__ import annotations

import math

NONE = "-"


def seconds(duration: float | None) -> str:
    """A duration: `83.4 ms`, `1.24 s`, `412 µs`."""
    if duration is None:
        return NONE
    if abs(duration) >= 0.9995 or duration == 0:
        return f"{number(duration)} s"
    if abs(duration) >= 0.9995e-3:
        return f"{number(duration * 1e3)} ms"
    return f"{number(duration * 1e6)} µs"


def short_seconds(duration: float) -> str:
    """The same without zeros at the end, as beside an axis: `50 ms`."""
    digits, _, unit = seconds(duration).partition(" ")
    return f"{_short(digits)} {unit}"


def number(value: float | None) -> str:
    """Three digits, `0.0123`, `83.4`, `12,300`; all digits of an integer."""
    if value is None:
        return NONE
    if isinstance(value, int) or value == 0:
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    digits = 2 - math.floor(math.log10(abs(rounded)))  # 9.999 has become 10.0
    return f"{rounded:,.{max(digits, 0)}f}"


def short_number(value: float) -> str:
    """The same without zeros at the end, as beside an axis: `2.5`, `10`."""
    return _short(number(value))


def share(part: float | None) -> str:
    """A part of one in percent: `96.3 %`."""
    return NONE if part is None else f"{100 * part:.1f} %"


def _short(digits: str) -> str:
    return digits.rstrip("0").rstrip(".") if "." in digits else digits
