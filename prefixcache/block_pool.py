"""The blocks of the KV pool as ids, and the only counts of who refers to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NewType

from prefixcache.errors import DoubleFreeError, InvalidArgumentError, OutOfBlocksError

BlockId = NewType("BlockId", int)
"""Index of one block: `block_size` tokens of KV in all layers."""

OnFree = Callable[[list[BlockId]], None]
"""Told which blocks have just become free."""


class BlockPool:
    """Reference counts of `num_blocks` blocks. Holds ids, never tensors.

    A block is *cached* while one of its references is the tree's, *idle* when that is its only
    one, and *live* while anybody else refers to it.

    Invariants, proved by `check`:
    - a block is in the free list, once, exactly when its count is zero;
    - a cached block has a count of at least one;
    - `num_idle` is the number of cached blocks with a count of one.
    """

    __slots__ = ("_free_ids", "_is_cached", "_num_idle", "_on_free", "_ref_counts")

    def __init__(self, num_blocks: int, *, on_free: OnFree | None = None) -> None:
        """All blocks free. Raises InvalidArgumentError when `num_blocks` is less than one."""
        if num_blocks < 1:
            raise InvalidArgumentError(f"num_blocks is {num_blocks}; a pool needs at least 1 block")
        self._ref_counts = [0] * num_blocks
        self._is_cached = bytearray(num_blocks)
        self._free_ids = [BlockId(i) for i in reversed(range(num_blocks))]  # a stack, lowest id on top
        self._num_idle = 0
        self._on_free = on_free

    @property
    def num_blocks(self) -> int:
        return len(self._ref_counts)

    @property
    def num_free(self) -> int:
        return len(self._free_ids)

    @property
    def num_idle(self) -> int:
        return self._num_idle

    def num_references(self, block_id: BlockId) -> int:
        return self._ref_counts[block_id]

    def is_cached(self, block_id: BlockId) -> bool:
        return bool(self._is_cached[block_id])

    def is_idle(self, block_id: BlockId) -> bool:
        return self._ref_counts[block_id] == 1 and bool(self._is_cached[block_id])

    def allocate(self, count: int) -> list[BlockId]:
        """Take `count` free blocks, one reference each, or raise OutOfBlocksError and take none.

        Ids ascend as long as the free list allows it, because attention reads neighbouring
        blocks faster. O(count).
        """
        if count > len(self._free_ids):
            raise OutOfBlocksError(num_needed=count, num_free=self.num_free, num_idle=self._num_idle)
        cut = len(self._free_ids) - count
        taken = self._free_ids[cut:]
        del self._free_ids[cut:]
        taken.reverse()
        for block_id in taken:
            self._ref_counts[block_id] = 1
        return taken

    def retain(self, block_ids: Sequence[BlockId]) -> None:
        """Add one reference to each block. Requires: none is free. O(blocks)."""
        counts, is_cached, num_woken = self._ref_counts, self._is_cached, 0
        for block_id in block_ids:
            count = counts[block_id]
            assert count, f"retain of free block {block_id}"
            if count == 1:
                num_woken += is_cached[block_id]
            counts[block_id] = count + 1
        self._num_idle -= num_woken

    def release(self, block_ids: Sequence[BlockId]) -> None:
        """Drop one reference of each block; blocks without any become free. O(blocks).

        Raises DoubleFreeError, and changes nothing, when a block has no reference to drop
        besides the tree's, which only `remove_cached` drops.
        """
        counts, is_cached = self._ref_counts, self._is_cached
        num_idled, freed, overdrawn = 0, [], []
        for block_id in block_ids:
            count = counts[block_id] - 1
            counts[block_id] = count
            if count == 1:
                num_idled += is_cached[block_id]
            elif count < 1:
                if count < 0 or is_cached[block_id]:
                    overdrawn.append(block_id)
                else:
                    freed.append(block_id)
        if overdrawn:
            for block_id in block_ids:
                counts[block_id] += 1
            raise DoubleFreeError(f"blocks {overdrawn} are released more often than they were retained")
        self._num_idle += num_idled
        self._put_back(freed)

    def add_cached(self, block_ids: Sequence[BlockId]) -> None:
        """The tree takes one reference of each block. Requires: live, and not cached yet. O(blocks)."""
        for block_id in block_ids:
            assert self._ref_counts[block_id] > 0, f"free block {block_id} put into the tree"
            assert not self._is_cached[block_id], f"block {block_id} put into the tree twice"
            self._ref_counts[block_id] += 1
            self._is_cached[block_id] = 1

    def remove_cached(self, block_ids: Sequence[BlockId]) -> None:
        """The tree drops its reference of each block; idle ones become free. O(blocks)."""
        freed = []
        for block_id in block_ids:
            assert self._is_cached[block_id], f"block {block_id} is not in the tree"
            self._ref_counts[block_id] -= 1
            self._is_cached[block_id] = 0
            if not self._ref_counts[block_id]:
                freed.append(block_id)
        self._num_idle -= len(freed)
        self._put_back(freed)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests. O(blocks log blocks)."""
        assert sorted(self._free_ids) == [i for i, count in enumerate(self._ref_counts) if count == 0]
        assert all(count >= cached for count, cached in zip(self._ref_counts, self._is_cached, strict=True))
        assert self._num_idle == sum(map(self.is_idle, map(BlockId, range(self.num_blocks))))

    def _put_back(self, freed: list[BlockId]) -> None:
        if freed:
            freed.sort(reverse=True)  # so that the stack hands them out in ascending order again
            self._free_ids.extend(freed)
            if self._on_free is not None:
                self._on_free(freed)
