"""Everything that is told and remembered when blocks come into the tree or leave it."""

from __future__ import annotations

from prefixcache.block_keys import KEY_BYTES, BlockKey, unpack_keys
from prefixcache.events import EventLog
from prefixcache.eviction_policies import EvictionPolicy
from prefixcache.history import History, Tombstone
from prefixcache.radix_node import RadixNode
from prefixcache.radix_tree import RadixTree


class Journal:
    """Tells the event log, if there is one, and keeps history and policy in step with each other.

    Partly filled blocks have no keys, so nothing is told of them.
    """

    __slots__ = ("_events", "_history", "_policy", "_tree")

    def __init__(
        self, tree: RadixTree, policy: EvictionPolicy, history: History, events: EventLog | None
    ) -> None:
        self._tree = tree
        self._policy = policy
        self._history = history
        self._events = events

    def came(self, node: RadixNode, num_blocks: int) -> None:
        """The last `num_blocks` of a node have come into the tree. O(blocks), O(1) if nobody listens."""
        remembered = None
        if self._events is not None or self._history:
            keys = self._tree.keys_of(node)
            if keys:
                start = len(keys) - num_blocks * KEY_BYTES
                if self._events is not None:
                    parent_key = (
                        BlockKey(keys[start - KEY_BYTES : start]) if start else self._tree.key_above(node)
                    )
                    edge = node.edge[-num_blocks * self._tree.chunk_bytes :]
                    self._events.stored(parent_key, unpack_keys(keys[start:]), edge, node.is_public)
                remembered = self._history.pop(BlockKey(keys[start : start + KEY_BYTES]))
                if remembered is not None:
                    self._policy.forgotten(remembered)
        self._policy.inserted(node, num_blocks, remembered)

    def goes(self, leaf: RadixNode, num_blocks: int, tombstone: Tombstone) -> None:
        """The last `num_blocks` of a leaf are about to be evicted. O(blocks)."""
        self._policy.removed(leaf, num_blocks, is_evicted=True)
        keys = self._tree.keys_of(leaf)[-num_blocks * KEY_BYTES :]
        if keys:
            first_key = BlockKey(keys[:KEY_BYTES])
            self.bury(first_key, tombstone, leaf.lost_key)
            survivor = leaf if num_blocks < len(leaf.block_ids) else leaf.parent
            assert survivor is not None
            survivor.lost_key = first_key
            if self._events is not None:
                self._events.removed(unpack_keys(keys)[::-1], "evicted")

    def bury(self, key: BlockKey, tombstone: Tombstone, behind: BlockKey | None = None) -> None:
        """Remember a run that is not in the tree. O(1)."""
        held, gone = self._history.add(key, tombstone, behind)
        self._policy.remembered(held)
        for forgotten in gone:
            self._policy.forgotten(forgotten)

    def cleared(self) -> None:
        """The tree is empty; what is remembered stays."""
        self._policy.cleared()
        if self._events is not None:
            self._events.cleared()
