"""Amounts of memory as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

_MEMORY_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)


def parse_memory(text: str) -> int:
    """Bytes of "1GiB", "512 MiB", "1.5G" or "1073741824"; Ki is 1024, K is 1000. Raises ValueError."""
    match = _MEMORY_SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"{text!r} is not a memory size")
    unit = (1024 if match[3] else 1000) ** " KMGT".index(match[2].upper() or " ")
    return int(Fraction(match[1]) * unit)


def format_memory(num_bytes: int) -> str:
    """A size for people, in binary units: "1GiB", "37.5MiB", "100B"."""
    exponent = min(max(num_bytes.bit_length() - 1, 0) // 10, 4)
    unit = ("B", "KiB", "MiB", "GiB", "TiB")[exponent]
    return f"{num_bytes / 1024**exponent:.4g}{unit}"
