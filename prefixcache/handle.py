"""One sequence's claim on blocks."""

from __future__ import annotations

from typing import NamedTuple

from prefixcache.block_pool import BlockId
from prefixcache.namespace import Namespace
from prefixcache.radix_node import Visit
from prefixcache.token_chunks import TOKEN_BYTES, PackedTokens, unpack_tokens

HOLE = BlockId(-1)
"""Stands in a block table where a block was that the sequence has given back."""


class BlockCopy(NamedTuple):
    """An order to copy the first `num_slots` rows of a block, in all layers."""

    source: BlockId
    target: BlockId
    num_slots: int


class CacheHandle:
    """The blocks of one sequence. `PrefixCache` makes and changes it; everybody else only reads.

    Invariants, proved by `check`:
    - the block table has a place for each block that `num_tokens` need, and no block twice;
    - what was given back is a hole there; the last place is none;
    - at most one copy is pending; its target is in the table, its source is not;
    - the cached tokens are at the beginning, and fewer than all.
    """

    __slots__ = (
        "_block_size",
        "block_table",
        "copies",
        "epoch",
        "has_holes",
        "is_released",
        "namespace",
        "num_cached_tokens",
        "num_prompt_tokens",
        "num_public_tokens",
        "num_restored_tokens",
        "num_used_blocks",
        "tokens",
        "use_cache",
        "visit",
    )

    def __init__(
        self,
        *,
        namespace: Namespace,
        tokens: PackedTokens | bytearray,
        block_size: int,
        block_table: list[BlockId],
        num_cached_tokens: int,
        num_public_tokens: int,
        copies: list[BlockCopy],
        use_cache: bool,
        visit: Visit,
        epoch: int,
    ) -> None:
        self.namespace = namespace
        self.tokens = bytearray(tokens)
        """Packed tokens that have room, one slot each."""
        self._block_size = block_size
        self.block_table = block_table
        self.num_cached_tokens = num_cached_tokens
        """Tokens at the beginning whose rows need not be computed once `copies` are executed."""
        self.num_restored_tokens = 0
        """Of these, the ones whose rows come from a tier."""
        self.num_prompt_tokens = self.num_tokens
        self.num_public_tokens = num_public_tokens
        self.num_used_blocks = 0
        """Blocks at the beginning of its path that it has counted as used."""
        self.copies = copies
        """Orders not executed yet, to be executed before any row of the handle is read or written."""
        self.use_cache = use_cache
        self.visit = visit
        self.epoch = epoch
        """Which tree its cached blocks are in; after a reset it publishes no more."""
        self.has_holes = False
        self.is_released = False

    @property
    def num_tokens(self) -> int:
        """Tokens that have room."""
        return len(self.tokens) // TOKEN_BYTES

    @property
    def held_blocks(self) -> list[BlockId]:
        """The blocks of the table, without the holes. O(blocks)."""
        return (
            [block_id for block_id in self.block_table if block_id != HOLE]
            if self.has_holes
            else self.block_table
        )

    @property
    def token_ids(self) -> list[int]:
        """The tokens that have room. O(tokens)."""
        return unpack_tokens(self.tokens)

    def forked(self) -> CacheHandle:
        """Another handle on the same blocks, without their references."""
        fork = CacheHandle(
            namespace=self.namespace,
            tokens=self.tokens,
            block_size=self._block_size,
            block_table=list(self.block_table),
            num_cached_tokens=self.num_cached_tokens,
            num_public_tokens=self.num_public_tokens,
            copies=[],
            use_cache=self.use_cache,
            visit=self.visit,
            epoch=self.epoch,
        )
        fork.num_prompt_tokens = self.num_prompt_tokens
        fork.num_used_blocks = self.num_used_blocks
        fork.num_restored_tokens = self.num_restored_tokens
        fork.has_holes = self.has_holes
        return fork

    @property
    def num_prompt_chunks(self) -> int:
        """Chunks at the beginning that are wholly of the prompt."""
        return self.num_prompt_tokens // self._block_size

    @property
    def num_public_chunks(self) -> int:
        """Chunks at the beginning that everybody in the domain may read: those wholly declared public."""
        return self.num_public_tokens // self._block_size

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests."""
        if self.is_released:
            assert not self.block_table
            assert not self.copies
            return
        table = set(self.held_blocks)
        assert len(self.block_table) == -(-self.num_tokens // self._block_size)
        assert len(table) + self.block_table.count(HOLE) == len(self.block_table)
        assert self.has_holes == (HOLE in self.block_table)
        assert self.block_table[-1] != HOLE
        assert 0 <= self.num_restored_tokens <= self.num_cached_tokens < self.num_tokens
        assert 0 <= self.num_public_tokens <= self.num_tokens
        assert len(self.copies) <= 1  # for what a pending copy will fill cannot become shared
        assert all(copy.target in table and copy.source not in table for copy in self.copies)
        assert all(0 < copy.num_slots < self._block_size for copy in self.copies)
