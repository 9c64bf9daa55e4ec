"""The blocks of the KV pool as ids, and the only counts of who refers to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NewType

from prefixcache.errors import DoubleFreeError, InvalidArgumentError, OutOfBlocksError

BlockId = NewType("BlockId", int)
"""Index of one block: `block_size` tokens of KV in all layers."""

_LEFT_TREE = 1
_FIRST_EPOCH = 2

OnFree = Callable[[list[BlockId]], None]
"""Told which blocks have just become free."""


class BlockPool:
    """Reference counts of `num_blocks` blocks. Holds ids, never tensors.

    A block is *cached* while one of its references is the tree's, *idle* when that is its only
    one, and *live* while anybody else refers to it.

    A block that leaves the tree while it is live keeps the tree's reference as a *stale* one, and
    is free as soon as only that is left. `forget_cached` makes all blocks leave the tree at once:
    those that were idle count as free already and are put into the free list when it runs short.

    Invariants, proved by `check`:
    - a block is in the free list, once, exactly when its count is zero;
    - a cached block has a count of at least one;
    - `num_idle` is the number of cached blocks with a count of one;
    - the stale blocks with a count of one are those not swept yet, and none is before the sweep.
    """

    __slots__ = (
        "_cached_in_epoch",
        "_epoch",
        "_free_ids",
        "_next_swept",
        "_num_idle",
        "_num_unswept",
        "_ref_counts",
        "_watchers",
    )

    def __init__(self, num_blocks: int, *, on_free: OnFree | None = None) -> None:
        """All blocks free. Raises InvalidArgumentError when `num_blocks` is less than one."""
        if num_blocks < 1:
            raise InvalidArgumentError(f"num_blocks is {num_blocks}; a pool needs at least 1 block")
        self._ref_counts = [0] * num_blocks
        self._cached_in_epoch = [0] * num_blocks
        """0 for a block that was in no tree, the current epoch if it is, anything else if it is stale."""
        self._epoch = _FIRST_EPOCH
        self._free_ids = [BlockId(i) for i in reversed(range(num_blocks))]  # a stack, lowest id on top
        self._num_idle = 0
        self._num_unswept = 0
        self._next_swept = 0
        self._watchers = [] if on_free is None else [on_free]

    @property
    def num_blocks(self) -> int:
        return len(self._ref_counts)

    @property
    def num_free(self) -> int:
        return len(self._free_ids) + self._num_unswept

    @property
    def num_idle(self) -> int:
        return self._num_idle

    def num_references(self, block_id: BlockId) -> int:
        return self._ref_counts[block_id]

    def is_cached(self, block_id: BlockId) -> bool:
        return self._cached_in_epoch[block_id] == self._epoch

    def is_stale(self, block_id: BlockId) -> bool:
        """Whether one of its references is that of a tree that was forgotten."""
        return self._cached_in_epoch[block_id] not in (0, self._epoch)

    def is_idle(self, block_id: BlockId) -> bool:
        return self._ref_counts[block_id] == 1 and self._cached_in_epoch[block_id] == self._epoch

    def num_readers(self, block_ids: Sequence[BlockId]) -> tuple[int, int]:
        """How many of these blocks handles hold, and the most handles that hold one of them.

        Requires: at least one block, and all are in the tree. O(blocks), at the speed of C.
        """
        counts = [*map(self._ref_counts.__getitem__, block_ids)]
        return len(counts) - counts.count(1), max(counts) - 1

    def allocate(self, count: int) -> list[BlockId]:
        """Take `count` free blocks, one reference each, or raise OutOfBlocksError and take none.

        Ids ascend as long as the free list allows it, because attention reads neighbouring
        blocks faster. O(count), and over time O(num_blocks) for each `forget_cached`.
        """
        if count > self.num_free:
            raise OutOfBlocksError(num_needed=count, num_free=self.num_free, num_idle=self._num_idle)
        if count > len(self._free_ids):
            self._sweep(count - len(self._free_ids))
        cut = len(self._free_ids) - count
        taken = self._free_ids[cut:]
        del self._free_ids[cut:]
        taken.reverse()
        for block_id in taken:
            self._ref_counts[block_id] = 1
        return taken

    def retain(self, block_ids: Sequence[BlockId]) -> None:
        """Add one reference to each block. Requires: none is free. O(blocks)."""
        counts, cached_in, epoch, num_woken = self._ref_counts, self._cached_in_epoch, self._epoch, 0
        for block_id in block_ids:
            count = counts[block_id]
            assert count, f"retain of free block {block_id}"
            if count == 1 and cached_in[block_id] == epoch:
                num_woken += 1
            counts[block_id] = count + 1
        self._num_idle -= num_woken

    def retain_cached(self, block_ids: Sequence[BlockId]) -> None:
        """`retain`, twice as fast. Requires: all are in the tree. O(blocks)."""
        counts, num_woken = self._ref_counts, 0
        for block_id in block_ids:
            count = counts[block_id]
            if count == 1:
                num_woken += 1
            counts[block_id] = count + 1
        self._num_idle -= num_woken

    def release(self, block_ids: Sequence[BlockId]) -> int:
        """Drop one reference of each block; blocks without any but a stale one become free. O(blocks).

        Returns how many became free that were never in the tree.
        Raises DoubleFreeError, and changes nothing, when a block has no reference to drop
        besides the tree's, which only `remove_cached` drops.
        """
        counts, cached_in, epoch = self._ref_counts, self._cached_in_epoch, self._epoch
        num_idled, num_stale = 0, 0
        freed: list[BlockId] = []
        overdrawn: list[BlockId] = []
        for block_id in block_ids:
            count = counts[block_id] - 1
            counts[block_id] = count
            if count > 1:
                continue
            cached_epoch = cached_in[block_id]
            if cached_epoch == epoch and count == 1:
                num_idled += 1
            elif count < (cached_epoch != 0):
                overdrawn.append(block_id)
            elif count == (cached_epoch != 0):
                num_stale += count
                freed.append(block_id)
        if overdrawn:
            for block_id in block_ids:
                counts[block_id] += 1
            raise DoubleFreeError(f"blocks {overdrawn} are released more often than they were retained")
        self._num_idle += num_idled
        self._put_back(freed)
        return len(freed) - num_stale

    def add_cached(self, block_ids: Sequence[BlockId]) -> int:
        """The tree takes one reference of each block, its stale one if it was in the tree before. O(blocks).

        Returns how many were not. Requires: live, and not in the tree.
        """
        num_new = 0
        for block_id in block_ids:
            assert self._ref_counts[block_id] > 0, f"free block {block_id} put into the tree"
            cached_epoch = self._cached_in_epoch[block_id]
            assert cached_epoch <= _LEFT_TREE, f"block {block_id} put into the tree twice, or after a reset"
            if not cached_epoch:
                num_new += 1
                self._ref_counts[block_id] += 1
            self._cached_in_epoch[block_id] = self._epoch
        return num_new

    def remove_cached(self, block_ids: Sequence[BlockId]) -> None:
        """The blocks leave the tree: idle ones become free, live ones stale. O(blocks)."""
        counts, cached_in, epoch, freed = self._ref_counts, self._cached_in_epoch, self._epoch, []
        for block_id in block_ids:
            assert cached_in[block_id] == epoch, f"block {block_id} is not in the tree"
            if counts[block_id] == 1:
                freed.append(block_id)
            else:
                cached_in[block_id] = _LEFT_TREE
        self._num_idle -= len(freed)
        self._put_back(freed)

    def forget_cached(self) -> None:
        """All cached blocks leave the tree: idle ones are free, live ones as soon as released. O(1)."""
        self._epoch += 1
        self._num_unswept += self._num_idle
        self._num_idle = 0
        self._next_swept = 0

    def watch(self, on_free: OnFree) -> None:
        """Tell of blocks that become free, before anybody can have them. Requires: not told already."""
        assert on_free not in self._watchers
        self._watchers.append(on_free)

    def unwatch(self, on_free: OnFree) -> None:
        """Tell no more. Requires: told so far."""
        self._watchers.remove(on_free)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests. O(blocks log blocks)."""
        counts, all_ids = self._ref_counts, list(map(BlockId, range(self.num_blocks)))
        assert sorted(self._free_ids) == [i for i in all_ids if counts[i] == 0]
        assert all(counts[i] >= (self._cached_in_epoch[i] != 0) for i in all_ids)
        assert self._num_idle == sum(map(self.is_idle, all_ids))
        unswept = [i for i in all_ids if counts[i] == 1 and self.is_stale(i)]
        assert self._num_unswept == len(unswept)
        assert all(i >= self._next_swept for i in unswept)

    def _sweep(self, count: int) -> None:
        """Put the next `count` stale blocks that nobody holds into the free list."""
        freed: list[BlockId] = []
        block_id = self._next_swept
        while len(freed) < count:
            if self._ref_counts[block_id] == 1 and self.is_stale(BlockId(block_id)):
                freed.append(BlockId(block_id))
            block_id += 1
        self._next_swept = block_id
        self._num_unswept -= count
        self._put_back(freed)

    def _put_back(self, freed: list[BlockId]) -> None:
        if freed:
            freed.sort(reverse=True)  # so that the stack hands them out in ascending order again
            for block_id in freed:
                self._ref_counts[block_id] = 0
                self._cached_in_epoch[block_id] = 0
            self._free_ids.extend(freed)
            for on_free in self._watchers:
                on_free(freed)
