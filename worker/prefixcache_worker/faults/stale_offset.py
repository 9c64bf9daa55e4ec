"""A batch offset that accumulates and is not set back between requests.

The place where a sequence's rows begin is found by adding up the lengths before it. Where that sum is not
set back, the second sequence of a batch begins to read at the beginning of the first, the third at that of
the first too, and so on: each reads the rows of all before it, which the mask hides. One request alone
shows nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache import BlockId
from prefixcache_worker.attention.plan import SequenceSpan
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.faults.hidden_rows import Excess, read_in_excess


def plant(engine: Engine) -> None:
    """Each decoding sequence reads the rows of those that decode before it in the batch."""
    read_in_excess(engine, _rows_of_those_before)


def _rows_of_those_before(spans: Sequence[SequenceSpan]) -> list[Excess]:
    excesses, offset = [], 0
    blocks_before: list[BlockId] = []
    for span in spans:
        if not span.is_answer:
            excesses.append(Excess(0))
            continue
        excesses.append(Excess(offset, tuple(blocks_before)))
        offset += span.length
        blocks_before += (block_id for block_id in span.block_table if block_id >= 0)
    return excesses
