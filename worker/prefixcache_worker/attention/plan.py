"""Which KV rows a step reads, and for whom: the heart of shared-prefix decoding.

Pure Python over block ids: a plan can be printed, compared and tested without a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from prefixcache import BlockId

MIN_SAVED_ROWS = 128
"""A run is shared only when that spares at least this many row reads; below, one more partial result
per query costs more than reading the rows again."""


SPLIT_ROWS = 512
"""Runs are cut where a row's position is a multiple of this. So there is enough to do for every core even
when a few heads read one long run, and the same rows are summed together, prefix shared or not."""


class SequenceSpan(NamedTuple):
    """One sequence's part of a step: `num_tokens` new tokens behind `start` rows that are in the pool."""

    block_table: Sequence[BlockId]
    start: int
    num_tokens: int

    @property
    def length(self) -> int:
        """KV rows of the sequence once this step has written its own."""
        return self.start + self.num_tokens


class WorkItem(NamedTuple):
    """One run of KV rows and the query tokens that read it.

    The queries are consecutive tokens of the batch. Of a `causal` item they are the run's own tokens:
    token i of the item reads rows 0 .. i. Of any other item every query reads every row.
    """

    block_ids: tuple[BlockId, ...]
    first_row: int  # row of block_ids[0] at which the run starts
    num_rows: int
    first_token: int
    num_tokens: int
    level: int  # which partial result of its tokens this is; 0 comes first in position order
    num_sequences: int
    causal: bool


class AttentionPlan(NamedTuple):
    """All reads of one step.

    Invariants, proved by `check`: the items of a token, by level, cover exactly the rows its sequence
    has up to the token, once and in position order.
    """

    order: tuple[int, ...]  # batch order: indices into the spans that were planned
    spans: tuple[SequenceSpan, ...]  # in batch order
    items: tuple[WorkItem, ...]
    block_size: int

    @property
    def num_tokens(self) -> int:
        return sum(span.num_tokens for span in self.spans)

    @property
    def num_levels(self) -> int:
        return 1 + max(item.level for item in self.items)

    @property
    def num_rows_read(self) -> int:
        """KV rows this step reads per layer, a shared run once."""
        return sum(item.num_rows for item in self.items)

    @property
    def num_rows_unshared(self) -> int:
        """KV rows it would read if every sequence read its own."""
        return sum(span.length for span in self.spans)

    def slot_mapping(self) -> list[int]:
        """The slot that each new token's row is written to, in batch order."""
        size = self.block_size
        return [
            span.block_table[position // size] * size + position % size
            for span in self.spans
            for position in range(span.start, span.length)
        ]

    def check(self) -> None:
        """Raise AssertionError if a token would read a row too many, too few or twice. For tests."""
        size = self.block_size
        reads: dict[int, list[tuple[int, int]]] = {}  # token -> (level, slot) in item order
        for item in self.items:
            slots = [
                item.block_ids[row // size] * size + row % size
                for row in range(item.first_row, item.first_row + item.num_rows)
            ]
            for i in range(item.num_tokens):
                visible = slots[: i + 1] if item.causal else slots
                reads.setdefault(item.first_token + i, []).extend((item.level, slot) for slot in visible)
        token = 0
        for span in self.spans:
            table_slots = [block_id * size + row for block_id in span.block_table for row in range(size)]
            for position in range(span.start, span.length):
                levels = [level for level, _ in reads[token]]
                assert levels == sorted(levels), f"token {token} merges out of position order"
                assert [slot for _, slot in reads[token]] == table_slots[: position + 1], f"token {token}"
                token += 1
        assert sorted(self.order) == list(range(len(self.spans)))


def plan_attention(spans: Sequence[SequenceSpan], block_size: int, *, share: bool = True) -> AttentionPlan:
    """Find every run of blocks that several sequences have in common, at any depth.

    Sequences are put in the order of their block tables, which is the order of a walk through the
    radix tree, so those that share a run are neighbours and a run's queries are one slice of the
    batch. Only whole blocks that lie before each sequence's new tokens are shared: nothing in them
    is written any more. With `share=False` every sequence reads its own rows, for comparison.

    Requires at least one span, each with a token and a table that reaches its length.
    Cost: O(n log n) list comparisons for n sequences, each at memory speed.
    """
    tables = [list(span.block_table[: span.start // block_size]) for span in spans]
    order = sorted(range(len(spans)), key=tables.__getitem__)
    ordered = [spans[i] for i in order]
    tables = [tables[i] for i in order]
    first_tokens = [0]
    for span in ordered:
        first_tokens.append(first_tokens[-1] + span.num_tokens)

    items: list[WorkItem] = []
    # Sequences [begin, end) share the first `depth` blocks of their tables; the first `done` of them,
    # and `level` partial results, are covered by items already.
    stack = [(0, len(ordered), 0, 0, 0)]
    while stack:
        begin, end, depth, done, level = stack.pop()
        if end - begin == 1 or not share:
            for i in range(begin, end):
                items += _own_items(ordered[i], first_tokens[i], done, level, block_size)
            continue
        # The group is sorted, so what its first and last tables share, all of them share.
        common = _common_length(tables[begin], tables[end - 1], depth)
        if (common - done) * block_size * (end - begin - 1) >= MIN_SAVED_ROWS:
            readers = _Readers(first_tokens[begin], first_tokens[end] - first_tokens[begin], end - begin)
            shared = _cut(tables[begin], done * block_size, common * block_size, readers, level, block_size)
            items += shared
            done, level = common, level + len(shared)
        groups = _split_by_block(tables, begin, end, common)
        stack.extend((a, b, common, done, level) for a, b in reversed(groups))
    return AttentionPlan(tuple(order), tuple(ordered), tuple(items), block_size)


class _Readers(NamedTuple):
    """Who reads an item: a slice of the batch."""

    first_token: int
    num_tokens: int
    num_sequences: int


def _own_items(
    span: SequenceSpan, first_token: int, num_done_blocks: int, level: int, block_size: int
) -> list[WorkItem]:
    """What one sequence reads alone: the rest of its past, then its new tokens."""
    readers = _Readers(first_token, span.num_tokens, 1)
    is_decoding = span.num_tokens == 1  # a single new token reads everything up to itself
    past_end = span.length if is_decoding else span.start
    items = _cut(span.block_table, num_done_blocks * block_size, past_end, readers, level, block_size)
    if not is_decoding:
        level += len(items)
        items.append(
            _item(span.block_table, span.start, span.length, readers, level, block_size, causal=True)
        )
    return items


def _cut(
    table: Sequence[BlockId], begin: int, end: int, readers: _Readers, level: int, block_size: int
) -> list[WorkItem]:
    """Items for rows [begin, end) of a table, none across a multiple of SPLIT_ROWS; each is a level."""
    borders = [begin, *range((begin // SPLIT_ROWS + 1) * SPLIT_ROWS, end, SPLIT_ROWS), end]
    return [
        _item(table, first, last, readers, level + i, block_size)
        for i, (first, last) in enumerate(pairwise(borders))
        if first < last
    ]


def _item(
    table: Sequence[BlockId],
    begin: int,
    end: int,
    readers: _Readers,
    level: int,
    block_size: int,
    *,
    causal: bool = False,
) -> WorkItem:
    first_block = begin // block_size
    return WorkItem(
        block_ids=tuple(table[first_block : -(-end // block_size)]),
        first_row=begin - first_block * block_size,
        num_rows=end - begin,
        first_token=readers.first_token,
        num_tokens=readers.num_tokens,
        level=level,
        num_sequences=readers.num_sequences,
        causal=causal,
    )


def _common_length(a: list[BlockId], b: list[BlockId], known: int) -> int:
    """How many blocks two tables have in common, the first `known` of which need no look. O(length)."""
    low, high = known, min(len(a), len(b))
    while low < high:  # bisect on slice equality: compares run at memory speed, not block by block
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _split_by_block(tables: list[list[BlockId]], begin: int, end: int, depth: int) -> list[tuple[int, int]]:
    """Cut [begin, end) where block number `depth` changes; tables that end there stand alone."""
    cuts = [begin]
    for i in range(begin + 1, end):
        before, here = tables[i - 1], tables[i]
        if len(before) <= depth or len(here) <= depth or before[depth] != here[depth]:
            cuts.append(i)
    cuts.append(end)
    return list(pairwise(cuts))
