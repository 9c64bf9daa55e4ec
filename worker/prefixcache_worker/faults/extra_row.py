"""A read that takes one row too many.

The classic `start + length + 1`: every decoding sequence reads the row behind its last one too. The mask
hides it, so that no answer changes, but it is fetched in every layer of every step.
"""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache import BlockId
from prefixcache_worker.attention.plan import SequenceSpan
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.faults.hidden_rows import NO_EXCESS, Excess, read_in_excess

_UNUSED_ENTRY = BlockId(0)
"""What tables of fixed size usually have behind their last entry."""


def plant(engine: Engine) -> None:
    """One row more for each sequence that decodes."""
    read_in_excess(engine, _one_row_each)


def _one_row_each(spans: Sequence[SequenceSpan]) -> list[Excess]:
    return [Excess(1, [_UNUSED_ENTRY]) if span.is_answer else NO_EXCESS for span in spans]
