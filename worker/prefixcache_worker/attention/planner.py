"""Makes the attention plans of one step after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

from prefixcache import BlockId
from prefixcache_worker.attention.plan import (
    CHUNK_ROWS,
    SEGMENT_ROWS,
    AttentionPlan,
    SequenceSpan,
    WorkItem,
)
from prefixcache_worker.model.model import AttentionWindow

MIN_SAVED_ROWS = 64
"""A run is shared only when that spares at least this many row reads; below, one more partial result
per query costs more than reading the rows again."""


class AttentionPlanner:
    """Plans the steps of one engine: who shares what is found out anew only when it may have changed.

    The plan is a function of the spans alone; what is kept from the step before only saves time.
    """

    def __init__(
        self, block_size: int, windows: Sequence[AttentionWindow | None] = (None,), *, share: bool = True
    ) -> None:
        """One plan per step is made for each window. With `share=False` every sequence reads its own rows.

        Requires a block size that divides CHUNK_ROWS or is a multiple of it.
        """
        assert CHUNK_ROWS % block_size == 0 or block_size % CHUNK_ROWS == 0
        self._block_size = block_size
        self._windows = tuple(windows)
        self._share = share
        self._sharing = _Sharing([])

    def plan(self, spans: Sequence[SequenceSpan]) -> tuple[AttentionPlan, ...]:
        """The plan of each window, with the same order of tokens in all.

        Sequences are put in the order of their block tables, which is the order of a walk through the
        radix tree, so those that share a run are neighbours and a run's queries are one slice of the
        batch. Only whole blocks that lie before each sequence's new tokens are shared: nothing in them
        is written any more. A shared run ends where a chunk does, or with the sinks.

        Requires at least one span, each with a token and a table that reaches its length.
        Cost: O(n log n) list comparisons for n sequences, n where the same ones went on decoding; each
        at memory speed.
        """
        tables = [list(span.block_table[: span.start // self._block_size]) for span in spans]
        if not self._sharing.grow(tables):
            self._sharing = _Sharing(tables)
        order = self._sharing.order
        ordered = tuple(spans[i] for i in order)
        root = self._sharing.root if self._share else _unshared(len(spans))
        return tuple(
            AttentionPlan(
                tuple(order),
                ordered,
                tuple(_items(ordered, root, self._block_size, window)),
                self._block_size,
                window,
            )
            for window in self._windows
        )


def plan_attention(
    spans: Sequence[SequenceSpan],
    block_size: int,
    *,
    window: AttentionWindow | None = None,
    share: bool = True,
) -> AttentionPlan:
    """The plan of a single step. See `AttentionPlanner.plan`."""
    return AttentionPlanner(block_size, (window,), share=share).plan(spans)[0]


@dataclass(slots=True)
class _Group:
    """Neighbours [begin, end) in the order, and the blocks that all their tables begin with."""

    begin: int
    end: int
    num_blocks: int = 0
    """Of a single sequence nobody asks."""
    parts: list[_Group] = field(default_factory=list)
    """Its members, grouped by what they share beyond; none if the group is one sequence."""


class _Sharing:
    """Which tables begin alike, and how far."""

    def __init__(self, tables: list[list[BlockId]]) -> None:
        """O(n log n) comparisons."""
        self.order = sorted(range(len(tables)), key=tables.__getitem__)
        self._tables = tables
        ordered = [tables[i] for i in self.order]
        self._common = [_common_length(a, b) for a, b in pairwise(ordered)]  # of neighbours, in blocks
        self.root = self._group(len(tables))

    def grow(self, tables: list[list[BlockId]]) -> bool:
        """Take over tables that have grown at their ends; False if anything else may have changed.

        That holds as long as neighbours in the order differ before their old ends.
        """
        if len(tables) != len(self._tables):
            return False
        lengths = [len(table) for table in self._tables]
        if any(new[:n] != old for old, new, n in zip(self._tables, tables, lengths, strict=True)):
            return False
        for neighbours, common in zip(pairwise(self.order), self._common, strict=True):
            if any(len(tables[i]) > lengths[i] == common for i in neighbours):
                return False
        self._tables = tables
        return True

    def _group(self, num_tables: int) -> _Group:
        root = _Group(0, num_tables)
        unfinished = [root]
        while unfinished:
            group = unfinished.pop()
            if group.end - group.begin <= 1:
                continue
            shared = self._common[group.begin : group.end - 1]
            group.num_blocks = min(shared)
            cuts = [i for i, common in enumerate(shared, group.begin + 1) if common == group.num_blocks]
            group.parts = [_Group(a, b) for a, b in pairwise([group.begin, *cuts, group.end])]
            unfinished += group.parts
        return root


def _unshared(num_sequences: int) -> _Group:
    return _Group(0, num_sequences, 0, [_Group(i, i + 1) for i in range(num_sequences)])


class _Range(NamedTuple):
    """Positions [begin, end) that are read under one rule: of a window's sinks all, behind them the last
    `size` only."""

    begin: int
    end: int
    size: int


_EVERYTHING = 1 << 62


def _ranges(window: AttentionWindow | None) -> list[_Range]:
    if window is None:
        return [_Range(0, _EVERYTHING, _EVERYTHING)]
    behind = _Range(window.num_sinks, _EVERYTHING, window.size)
    return [_Range(0, window.num_sinks, _EVERYTHING), behind] if window.num_sinks else [behind]


def _items(
    spans: Sequence[SequenceSpan], root: _Group, block_size: int, window: AttentionWindow | None
) -> Iterator[WorkItem]:
    """The items of all groups, range by range; a group's own before those of its parts."""
    first_tokens = list(accumulate((span.num_tokens for span in spans), initial=0))
    border = max(CHUNK_ROWS, block_size)
    first_level = 0
    for limits in _ranges(window):
        next_level = first_level
        # Positions before `done` are covered, by partial results before `level`.
        stack = [(root, limits.begin, first_level)]
        while stack:
            group, done, level = stack.pop()
            members = spans[group.begin : group.end]
            first_query = min(span.start for span in members)
            last_query = max(span.length for span in members) - 1
            begin = max(done, first_query - limits.size + 1)
            if len(members) == 1:
                end = min(last_query + 1, limits.end)
            else:
                end = min(group.num_blocks * block_size, limits.end)
                if end < limits.end:
                    end -= end % border
                starts = (max(done, span.start - limits.size + 1) for span in members)
                if sum(max(0, end - start) for start in starts) - (end - begin) < MIN_SAVED_ROWS:
                    end = done  # too little to pay: its members read it, each for itself
            for first, last in _cut(begin, end):
                first_block = first // block_size
                item = WorkItem(
                    block_ids=tuple(members[0].block_table[first_block : -(-last // block_size)]),
                    first_row=first - first_block * block_size,
                    num_rows=last - first,
                    first_position=first,
                    first_token=first_tokens[group.begin],
                    num_tokens=first_tokens[group.end] - first_tokens[group.begin],
                    level=level,
                    num_sequences=len(members),
                    masked=last - 1 > first_query or first <= last_query - limits.size,
                )
                yield item
                level += item.num_levels
            next_level = max(next_level, level)
            stack += [(part, max(done, end), level) for part in reversed(group.parts)]
        first_level = next_level


def _cut(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """[begin, end) in pieces that lie in one segment each."""
    while begin < end:
        border = min(end, (begin // SEGMENT_ROWS + 1) * SEGMENT_ROWS)
        yield begin, border
        begin = border


def _common_length(a: list[BlockId], b: list[BlockId]) -> int:
    """How many blocks two tables have in common. O(length)."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # bisect on slice equality: compares run at memory speed, not block by block
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
