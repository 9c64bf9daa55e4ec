"""The blocks that the tree keeps, and the room that evicting them makes."""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache.block_pool import BlockId, BlockPool
from prefixcache.errors import OutOfBlocksError
from prefixcache.eviction import EvictionOrder
from prefixcache.radix_node import RadixNode
from prefixcache.radix_tree import Path, RadixTree


class CachedBlocks:
    """Keeps the pool, the tree and the eviction order in step: whatever changes one goes through here.

    Knows nothing of handles. Time is logical: every `touch` is one tick.

    Invariants, proved by `check`:
    - the cached blocks of the pool are those of the tree;
    - nothing idle is ever above something live, so every idle block can be evicted;
    - the eviction order has exactly the leaves whose last block is idle;
    - no node was used later than now;
    - those of the pool and the tree.
    """

    __slots__ = ("_clock", "_eviction_order", "_num_evicted", "_pool", "_tree")

    def __init__(self, pool: BlockPool, tree: RadixTree) -> None:
        """Requires: both are empty, and nobody else changes them."""
        self._pool = pool
        self._tree = tree
        self._eviction_order = EvictionOrder()
        self._clock = 0
        self._num_evicted = 0

    @property
    def num_evicted(self) -> int:
        """Blocks evicted so far."""
        return self._num_evicted

    @property
    def num_available(self) -> int:
        """Blocks that can be had: the free ones, and the idle ones by eviction."""
        return self._pool.num_free + self._pool.num_idle

    def require_available(self, num_blocks: int) -> None:
        """Raise OutOfBlocksError unless `allocate` would find so many."""
        if num_blocks > self.num_available:
            raise OutOfBlocksError(
                num_needed=num_blocks, num_free=self._pool.num_free, num_idle=self._pool.num_idle
            )

    def allocate(self, num_blocks: int) -> list[BlockId]:
        """Take free blocks, evicting as many as are missing. Requires: so many are available.

        O(num_blocks + evicted * log leaves).
        """
        num_missing = num_blocks - self._pool.num_free
        if num_missing > 0:
            num_evicted = self.evict(num_missing)
            assert num_evicted == num_missing, "an idle block could not be evicted"
        return self._pool.allocate(num_blocks)

    def retain(self, block_ids: Sequence[BlockId]) -> None:
        """Add one reference to each. Requires: none is free; as for `release`. O(blocks + log leaves)."""
        self._pool.retain(block_ids)
        self._reconsider_deepest(block_ids)

    def release(self, block_ids: Sequence[BlockId]) -> None:
        """Drop one reference of each; what is cached stays until it is evicted.

        Requires: the cached ones lie on one path, the deepest last. O(blocks + log leaves).
        """
        self._pool.release(block_ids)
        self._reconsider_deepest(block_ids)

    def touch(self, path: Path) -> RadixNode:
        """One tick: the path is used now. Returns the node that ends with it, or the root.

        A node that goes on behind the path is split there, so that the rest keeps its age.
        Requires: the path's blocks are held, since ages must not change in the eviction order.
        O(depth), and the bytes of the edge that is split.
        """
        end = path.end
        if path.num_end_blocks < len(end.block_ids):
            end = self._tree.split(end, path.num_end_blocks)
        self._clock += 1
        node = end
        while node.parent is not None:
            node.last_used = self._clock
            node = node.parent
        return end

    def insert(
        self, parent: RadixNode, scope: bytes, edge: bytes, block_ids: list[BlockId]
    ) -> RadixNode | None:
        """Put a run, or a tail, below `parent`, in the place of a tail that it makes superfluous.

        Returns the node that now ends with it; None, and nothing has changed, when another chunk
        with the same hash has its place. Requires: live blocks whose rows are written, behind the
        end of the path touched last. O(bytes + log nodes).
        """
        if self._tree.is_taken(parent, scope, edge):
            return None
        tail = self._tree.superseded_tail(parent, scope, edge)
        if tail is not None:
            self._drop(tail, num_blocks=1)
        self._pool.add_cached(block_ids)
        return self._tree.insert(parent, scope, edge, block_ids, last_used=self._clock)

    def evict(self, num_blocks: int) -> int:
        """Evict up to `num_blocks` idle blocks, and return how many there were.

        Each is the last block of the leaf that was used least recently. O(num_blocks * log leaves).
        """
        num_evicted = 0
        while num_evicted < num_blocks and (leaf := self._eviction_order.coldest()) is not None:
            num_dropped = 0
            for block_id in reversed(leaf.block_ids):
                if num_evicted + num_dropped == num_blocks or not self._pool.is_idle(block_id):
                    break
                num_dropped += 1
            self._drop(leaf, num_dropped)
            num_evicted += num_dropped
        self._num_evicted += num_evicted
        return num_evicted

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests. O(everything)."""
        self._pool.check()
        self._tree.check()
        nodes = [node for _, node in self._tree.nodes()]
        all_ids = map(BlockId, range(self._pool.num_blocks))
        cached_ids = {block_id for node in nodes for block_id in node.block_ids}
        assert cached_ids == set(filter(self._pool.is_cached, all_ids))
        for node in nodes:
            assert node.parent is not None
            assert node.last_used <= self._clock
            run = node.parent.block_ids[-1:] + node.block_ids
            is_idle = [self._pool.is_idle(block_id) for block_id in run]
            assert is_idle == sorted(is_idle)
        self._eviction_order.check(
            node for node in nodes if node.is_leaf and self._pool.is_idle(node.block_ids[-1])
        )

    def _reconsider_deepest(self, block_ids: Sequence[BlockId]) -> None:
        """After a change of counts along a path: only its deepest block can be the end of a leaf."""
        for block_id in reversed(block_ids):
            if self._pool.is_cached(block_id):
                self._reconsider(block_id)
                break

    def _reconsider(self, block_id: BlockId) -> None:
        """Put the leaf that ends with this block into the eviction order, or take it out."""
        node = self._tree.node_ending_with(block_id)
        if node is not None:
            if node.is_leaf and self._pool.is_idle(block_id):
                self._eviction_order.put(node)
            else:
                self._eviction_order.discard(node)

    def _drop(self, leaf: RadixNode, num_blocks: int) -> None:
        """Take the last blocks of a leaf out of the tree."""
        self._eviction_order.discard(leaf)
        dropped_ids = leaf.block_ids[-num_blocks:]
        survivor = leaf if num_blocks < len(leaf.block_ids) else leaf.parent
        self._tree.shrink(leaf, num_blocks)
        self._pool.remove_cached(dropped_ids)
        if survivor is not None and not survivor.is_root:
            self._reconsider(survivor.block_ids[-1])
