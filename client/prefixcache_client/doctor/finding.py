"""What a check comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Of one check."""

    HEALTHY = "healthy"
    WARNING = "warning"
    """It works, and could work better."""
    FAULT = "fault"
    """It is wrong."""
    UNKNOWN = "unknown"
    """It could not be looked at, or the figures do not decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One verdict with its evidence."""

    step: int
    """Of the method, 1 to 5; 6 is the tree that leads to the bottleneck."""
    name: str
    """Of the check."""
    verdict: Verdict
    sentence: str
    """What was found, with the numbers."""
    evidence: dict[str, str | int | float]
    """The figures behind the verdict, by name with their unit."""
    pitfall: str | None = None
    """The entry of docs/pitfalls that tells of it, without .md; None where all is well."""
    advice: str = ""
    """The next thing to do; empty where there is nothing."""


def examples(sentences: Sequence[str], *, most: int = 3) -> dict[str, str | int | float]:
    """The first of them, as evidence."""
    return {f"example_{i}": sentence for i, sentence in enumerate(sentences[:most], start=1)}
