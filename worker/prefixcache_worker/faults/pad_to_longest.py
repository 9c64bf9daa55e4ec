"""Every sequence reads as many rows as the longest of its batch.

What a rectangular batch does: short sequences are padded to the longest, and the padding is read and
masked. One long request makes all others slow.
"""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache_worker.attention.plan import SequenceSpan
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.faults.hidden_rows import Excess, read_in_excess


def plant(engine: Engine) -> None:
    """Sequences that decode read their own last block again and again, up to the longest one's length."""
    read_in_excess(engine, _up_to_longest)


def _up_to_longest(spans: Sequence[SequenceSpan]) -> list[Excess]:
    longest = max(span.length for span in spans)
    excesses = []
    for span in spans:
        num_rows = longest - span.length if span.is_answer else 0
        excesses.append(Excess(num_rows, [span.block_table[-1]] * num_rows))  # more entries than blocks
    return excesses
