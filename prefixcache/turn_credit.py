"""Eviction by last use, on which conversations that go on get credit."""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache.history import Tombstone
from prefixcache.radix_node import MAX_TURN, OrderEntry, RadixNode

CREDIT_TICKS = 300
"""Requests by which each turn makes a block younger: about as many as come before the next turn does."""


class TurnCreditPolicy:
    """Least recently used, where each turn of its conversation makes a block younger.

    A prompt that has been continued will be continued again more likely than one that has not. That
    is so for conversations and not for everything, so the credit is 0 until `CreditGuard` has seen
    that it pays; then this is exactly lru.
    """

    name = "auto"
    num_queues = MAX_TURN + 1

    def __init__(self) -> None:
        self.credit_ticks = 0
        """Ticks for each turn. May be changed at any time."""

    def inserted(self, node: RadixNode, num_blocks: int, remembered: Tombstone | None) -> None:
        self.used(node)

    def used(self, node: RadixNode) -> None:
        node.rank = node.last_used
        node.queue = node.turn

    def removed(self, node: RadixNode, num_blocks: int, *, is_evicted: bool) -> None:
        """Nothing changes for the others."""

    def remembered(self, tombstone: Tombstone) -> None:
        """Nothing follows from it."""

    def forgotten(self, tombstone: Tombstone) -> None:
        """Nothing follows from it."""

    def cleared(self) -> None:
        """Nothing was counted."""

    def choose(self, heads: Sequence[OrderEntry]) -> OrderEntry:
        credit_ticks = self.credit_ticks
        if not credit_ticks:
            return min(heads)
        return min(heads, key=lambda head: (head[1] + credit_ticks * head[-1].queue, head))
