"""What a step has to read and to write, by the lengths and block tables of its sequences alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from prefixcache import BlockCopy, BlockId
from prefixcache_worker.attention.plan import SequenceSpan
from prefixcache_worker.attention.sparse import SparseReads
from prefixcache_worker.engine.batch import ScheduledSpan
from prefixcache_worker.engine.cache_scheme import SequenceHandle
from prefixcache_worker.engine.sequence import Sequence as EngineSequence
from prefixcache_worker.model.model import AttentionShape, AttentionWindow


class Rows(NamedTuple):
    """Positions [begin, end) of a sequence."""

    begin: int
    end: int

    @property
    def num_rows(self) -> int:
        return max(0, self.end - self.begin)

    def within(self, other: Rows) -> Rows:
        """What both have."""
        return Rows(max(self.begin, other.begin), min(self.end, other.end))


class SequenceTruth(NamedTuple):
    """One sequence's part of a step, as its handle was when the step was chosen."""

    sequence: EngineSequence
    handle: SequenceHandle
    """For who it is; what it says may change in the step."""
    block_table: tuple[BlockId, ...]
    num_room_tokens: int
    """Tokens that its blocks have room for."""
    start: int
    num_tokens: int
    copies: tuple[BlockCopy, ...]

    @classmethod
    def of(cls, span: ScheduledSpan) -> SequenceTruth:
        sequence, num_tokens = span
        handle = sequence.running_handle
        return cls(
            sequence,
            handle,
            tuple(handle.block_table),
            handle.num_tokens,
            sequence.num_computed_tokens,
            num_tokens,
            tuple(handle.copies),
        )

    @property
    def request_id(self) -> str:
        return self.sequence.request.request_id

    @property
    def length(self) -> int:
        """Rows once the step has written its own."""
        return self.start + self.num_tokens

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the step that are the prompt's."""
        return max(0, min(self.length, self.sequence.num_prompt_tokens) - self.start)

    def visible_rows(self, window: AttentionWindow | None) -> tuple[Rows, ...]:
        """What any token of the step reads: disjoint, in order."""
        if window is None:
            return (Rows(0, self.length),)
        first_seen = max(0, self.start - window.size + 1)
        sinks = Rows(0, min(window.num_sinks, first_seen))
        seen = Rows(first_seen, self.length)
        return (sinks, seen) if sinks.num_rows else (seen,)

    def num_visible_rows(self, window: AttentionWindow | None) -> int:
        return sum(rows.num_rows for rows in self.visible_rows(window))

    @property
    def span(self) -> SequenceSpan:
        return SequenceSpan(
            self.block_table,
            self.start,
            self.num_tokens,
            is_answer=self.start >= self.sequence.num_prompt_tokens,
        )

    def slot(self, position: int, block_size: int) -> int | None:
        """Where the row of a position lies; None where the sequence has no block for it."""
        block, row = divmod(position, block_size)
        return self.block_table[block] * block_size + row if block < len(self.block_table) else None

    def position(self, slot: int, block_size: int) -> int | None:
        """Whose row lies there; None if the block is none of the sequence's. O(blocks)."""
        block_id, row = divmod(slot, block_size)
        try:
            return self.block_table.index(BlockId(block_id)) * block_size + row
        except ValueError:
            return None


class StepTruth:
    """A step's sequences, and what any layer has to read for them."""

    def __init__(
        self,
        sequences: Sequence[SequenceTruth],
        shape: AttentionShape,
        block_size: int,
        sparse_reads: SparseReads | None = None,
    ) -> None:
        self.sequences = sequences
        self._shape = shape
        self._block_size = block_size
        self._sparse_reads = sparse_reads

    @property
    def num_tokens(self) -> int:
        return sum(sequence.num_tokens for sequence in self.sequences)

    @property
    def num_prompt_tokens(self) -> int:
        """Those of them that are prompts'."""
        return sum(sequence.num_prompt_tokens for sequence in self.sequences)

    @property
    def longest(self) -> int:
        """Rows of the longest sequence."""
        return max(sequence.length for sequence in self.sequences)

    def dense(self, window: AttentionWindow | None) -> list[SequenceTruth]:
        """Those that read all that a layer of this window lets them see."""
        return [sequence for sequence in self.sequences if not self._is_sparse(sequence, window)]

    def sparse(self, window: AttentionWindow | None) -> list[SequenceTruth]:
        """The others: those that read some blocks only."""
        return [sequence for sequence in self.sequences if self._is_sparse(sequence, window)]

    def num_rows(self, sequence: SequenceTruth, window: AttentionWindow | None) -> int:
        """Rows that a sequence reads in a layer of this window."""
        if self._sparse_reads is not None and self._is_sparse(sequence, window):
            return self._sparse_reads.num_rows_read(sequence.span, self._block_size)
        return sequence.num_visible_rows(window)

    @property
    def rows_needed(self) -> float:
        """Rows that a layer has to read at least, each once however many read it: the mean of the layers.

        What is chosen for one sequence counts for it alone.
        """

        def in_layer(window: AttentionWindow | None) -> int:
            num_chosen = sum(self.num_rows(sequence, window) for sequence in self.sparse(window))
            return _num_distinct_rows(self.dense(window), window, self._block_size) + num_chosen

        return self.mean_of_layers(in_layer)

    @property
    def rows_unshared(self) -> float:
        """The same if every sequence read its own."""
        return self.mean_of_layers(
            lambda window: sum(self.num_rows(sequence, window) for sequence in self.sequences)
        )

    def mean_of_layers(self, in_layer: Callable[[AttentionWindow | None], int]) -> float:
        """The mean over the layers of what depends on their windows; asked once for each window."""
        counts = Counter(map(self._shape.window, range(self._shape.num_layers)))
        return sum(in_layer(window) * count for window, count in counts.items()) / self._shape.num_layers

    def _is_sparse(self, sequence: SequenceTruth, window: AttentionWindow | None) -> bool:
        reads = self._sparse_reads
        return reads is not None and window is None and reads.is_sparse(sequence.span, self._block_size)


def _num_distinct_rows(
    truths: Iterable[SequenceTruth], window: AttentionWindow | None, block_size: int
) -> int:
    """Rows that they read, each once however many read it: the least that any plan can do. O(blocks)."""
    whole: set[BlockId] = set()
    parts: dict[BlockId, int] = {}  # of blocks that are read in part, a bit for each row
    for truth in truths:
        for rows in truth.visible_rows(window):
            first_whole, end_whole = -(-rows.begin // block_size), rows.end // block_size
            whole.update(truth.block_table[first_whole:end_whole])
            for begin, end in _borders(rows, first_whole, end_whole, block_size):
                block_id = truth.block_table[begin // block_size]
                bits = (1 << (end - begin)) - 1 << begin % block_size
                parts[block_id] = parts.get(block_id, 0) | bits
    num_part_rows = sum(bits.bit_count() for block_id, bits in parts.items() if block_id not in whole)
    return len(whole) * block_size + num_part_rows


def _borders(rows: Rows, first_whole: int, end_whole: int, block_size: int) -> Sequence[tuple[int, int]]:
    """The pieces of blocks that are not whole, at both ends."""
    if end_whole < first_whole:  # both ends are in one block
        return [(rows.begin, rows.end)]
    pieces = [(rows.begin, first_whole * block_size), (end_whole * block_size, rows.end)]
    return [(begin, end) for begin, end in pieces if begin < end]
