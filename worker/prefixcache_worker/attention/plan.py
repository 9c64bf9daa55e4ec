"""Which KV rows a step reads, and for whom: the heart of shared-prefix decoding.

Pure Python over block ids: a plan can be printed, compared and tested without a tensor. Made by
`planner.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from prefixcache import BlockId
from prefixcache_worker.model.model import AttentionWindow

CHUNK_ROWS = 64
"""Rows whose softmax is computed together. Chunks lie at multiples of this, by absolute position, and no
chunk is read in two pieces: so its result does not depend on who else reads it, or in what company."""

SEGMENT_ROWS = 512
"""Chunks are folded one after the other into the result of their segment, segments into the result of the
query. Segments are read independently, so a long run has work for every core."""


class SequenceSpan(NamedTuple):
    """One sequence's part of a step: `num_tokens` new tokens behind `start` rows that are in the pool."""

    block_table: Sequence[BlockId]
    start: int
    num_tokens: int
    is_answer: bool = False
    """Whether its tokens are ones that the model has chosen, and none is of a prompt."""

    @property
    def length(self) -> int:
        """KV rows of the sequence once this step has written its own."""
        return self.start + self.num_tokens


class WorkItem(NamedTuple):
    """A run of KV rows inside one segment, and the query tokens that read it: consecutive ones of the batch.

    A query reads what `AttentionPlan.positions` and `AttentionPlan.window` let it see of the run; if the
    item is not `masked`, all of it.
    """

    block_ids: tuple[BlockId, ...]
    first_row: int  # row of block_ids[0] at which the run starts
    num_rows: int
    first_position: int  # of the run's first row in its sequences
    first_token: int
    num_tokens: int
    level: int  # its place among the partial results of its queries, which are merged in this order
    num_sequences: int
    masked: bool  # whether any of its queries must not see one of its rows

    @property
    def end_position(self) -> int:
        return self.first_position + self.num_rows

    @property
    def num_levels(self) -> int:
        """Partial results of each query, in consecutive levels.

        One if the run is where a segment begins to be read: its chunks are folded as they come. A run that
        goes on where another left off leaves one for each chunk: the same chunks, folded in the same order.
        """
        begins_segment = self.first_position % SEGMENT_ROWS == 0 or self.first_position % CHUNK_ROWS != 0
        return 1 if begins_segment else -(-self.num_rows // CHUNK_ROWS)

    def slots(self, block_size: int) -> list[int]:
        """Where its rows lie in the pool."""
        rows = range(self.first_row, self.first_row + self.num_rows)
        return [self.block_ids[row // block_size] * block_size + row % block_size for row in rows]


class AttentionPlan(NamedTuple):
    """All reads of one step, in the layers that have this window.

    Invariants, proved by `check`: the items of a token, by level, hold every row that it sees, once and in
    position order; no item reads a row that none of its queries sees; no chunk lies in two items of a token,
    but for the chunk in which the sinks end.
    """

    order: tuple[int, ...]  # batch order: indices into the spans that were planned
    spans: tuple[SequenceSpan, ...]  # in batch order
    items: tuple[WorkItem, ...]
    block_size: int
    window: AttentionWindow | None = None

    @property
    def num_tokens(self) -> int:
        return sum(span.num_tokens for span in self.spans)

    @property
    def positions(self) -> list[int]:
        """The absolute position of every token of the batch."""
        return [position for span in self.spans for position in range(span.start, span.length)]

    @property
    def num_levels(self) -> int:
        return max(item.level + item.num_levels for item in self.items)

    @property
    def num_rows_read(self) -> int:
        """KV rows this step reads per layer, a shared run once."""
        return sum(item.num_rows for item in self.items)

    @property
    def num_rows_unshared(self) -> int:
        """KV rows it would read if every sequence read its own."""
        if self.window is None:
            return sum(span.length for span in self.spans)
        size, num_sinks = self.window
        first_seen = [max(0, span.start - size + 1) for span in self.spans]
        return sum(
            span.length - first + min(num_sinks, first)
            for span, first in zip(self.spans, first_seen, strict=True)
        )

    def slot_mapping(self) -> list[int]:
        """The slot that each new token's row is written to, in batch order."""
        size = self.block_size
        return [
            span.block_table[position // size] * size + position % size
            for span in self.spans
            for position in range(span.start, span.length)
        ]

    def describe(self) -> str:
        """The plan as a table, one line for each item."""
        window = "" if self.window is None else f", {self.window}"
        lines = [
            f"{len(self.spans)} sequences, {self.num_tokens} tokens, {self.num_rows_read} rows read "
            f"({self.num_rows_unshared} unshared){window}",
            f"{'level':>5} {'rows':>15} {'tokens':>11} {'sequences':>9} {'blocks':>6}",
        ]
        for item in self.items:
            rows = f"{item.first_position}..{item.end_position - 1}" + (" masked" if item.masked else "")
            tokens = f"{item.first_token}..{item.first_token + item.num_tokens - 1}"
            lines.append(
                f"{item.level:>5} {rows:>15} {tokens:>11} {item.num_sequences:>9} {len(item.block_ids):>6}"
            )
        return "\n".join(lines)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests."""
        assert sorted(self.order) == list(range(len(self.spans)))
        tables = [np.array(span.block_table) for span in self.spans]
        table_of = [
            table for table, span in zip(tables, self.spans, strict=True) for _ in range(span.num_tokens)
        ]
        positions = np.array(self.positions)
        reads: list[list[tuple[WorkItem, np.ndarray]]] = [[] for _ in positions]  # (item, positions of rows)
        for item in self.items:
            assert item.first_position // SEGMENT_ROWS == (item.end_position - 1) // SEGMENT_ROWS
            rows = np.arange(item.first_position, item.end_position)
            slots = np.array(item.slots(self.block_size))
            readers = np.arange(item.first_token, item.first_token + item.num_tokens)
            sees = self._sees(positions[readers, None], rows)  # [num_tokens, num_rows]
            assert sees.any(axis=0).all(), f"nobody sees a row of {item}"
            assert item.masked == (not sees.all()), f"wrongly masked or not: {item}"
            for token, seen in zip(readers, sees, strict=True):
                theirs = table_of[token][rows // self.block_size] * self.block_size + rows % self.block_size
                assert (theirs == slots)[seen].all(), f"token {token} reads the rows of another sequence"
                if seen.any():
                    reads[token].append((item, rows[seen]))
        for position, items in zip(positions, reads, strict=True):
            rows = np.arange(position + 1)
            seen = rows[self._sees(position, rows)]
            assert np.array_equal(np.concatenate([rows for _, rows in items]), seen), f"position {position}"
            for (item, rows), (following, next_rows) in pairwise(items):
                assert item.level + item.num_levels <= following.level, "merges out of position order"
                if self.window is None or not rows[-1] < self.window.num_sinks <= next_rows[0]:
                    assert rows[-1] // CHUNK_ROWS < next_rows[0] // CHUNK_ROWS, "a chunk in two pieces"

    def _sees(self, position: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Whether queries at `position` read the rows at `row` of their sequences."""
        if self.window is None:
            return row <= position
        return (row <= position) & ((row > position - self.window.size) | (row < self.window.num_sinks))
