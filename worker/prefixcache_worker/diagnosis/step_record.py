"""What is told of one engine step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class StepFault(Enum):
    """What kind of rule a step has broken; see `prefixcache.v1.StepFault`."""

    START = "start"
    """Rows were written at another place than behind the sequence's last one."""
    ROWS_READ_MORE = "rows read more"
    ROWS_READ_LESS = "rows read less"
    FOREIGN_ROWS = "foreign rows"
    """Of another sequence, or of a block that the sequence does not hold."""
    OVERLAP = "overlap"
    """Two wrote to one slot, or one to a block that others hold."""
    BORDER = "border"
    """No rows, or more than there is room or context for."""
    COUNTS = "counts"
    """Of blocks, requests or references."""
    COPY = "copy"
    """A block that was copied on write is not what it was copied from."""


class StepFinding(NamedTuple):
    """One broken rule."""

    fault: StepFault
    request_id: str
    """Empty when it concerns no single request."""
    expected: int
    found: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step. Rows are rows of one layer: the mean over the layers, rounded, where these differ."""

    num_sequences: int
    num_tokens: int
    num_prompt_tokens: int
    rows_needed: int
    rows_read: int
    rows_unshared: int
    longest: int
    num_block_copies: int
    seconds: float
    plan_seconds: float
    model_seconds: float
    live_blocks: int
    findings: tuple[StepFinding, ...]
