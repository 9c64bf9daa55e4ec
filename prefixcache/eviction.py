"""In which order cached blocks are given up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from sortedcontainers import SortedList

from prefixcache.eviction_policies import EvictionPolicy
from prefixcache.graveyard import Pile
from prefixcache.quota import TenantAccount
from prefixcache.radix_node import OrderEntry, RadixNode


class EvictionOrder:
    """The leaves whose last block can be evicted, the coldest first.

    A policy gives each node a queue and a rank in it. Whatever the policy, a lower priority goes
    first, and among equals the output of a request goes before its prompt. Priorities end by
    themselves. Leaves of a tenant that is at its floor are *parked*: still in here, but passed over.

    Kept up to date by whoever changes a leaf: nothing is ever searched or rebuilt. An entry is
    what the node was when it was put in; a change counts from the next `put`.

    Invariant, proved by `check`: exactly the evictable leaves are in here, each once, and those
    of a tenant with a quota in its account as well.
    """

    __slots__ = ("_expiries", "_heads", "_policy", "_queues", "_waiting")

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._queues = [SortedList() for _ in range(policy.num_queues)]
        self._heads: list[OrderEntry | None] = [None] * policy.num_queues
        """The first of each queue, at hand."""
        self._expiries = SortedList()  # (end of the priority, serial, node)
        self._waiting: dict[TenantAccount, SortedList] = {}
        """Parked entries."""

    def __iter__(self) -> Iterator[RadixNode]:
        """All leaves that are not parked, in no order. O(leaves)."""
        for queue in self._queues:
            for *_, leaf in queue:
                yield leaf

    def piles(self) -> list[Pile]:
        """What holds the entries, to be taken apart when the order is used no more."""
        return [*self._queues, *self._waiting.values(), self._expiries]

    def put(self, leaf: RadixNode) -> None:
        """Nothing happens when it is in here already. O(log leaves)."""
        if leaf.order_entry is not None:
            return
        entry = (leaf.priority, leaf.rank, not leaf.is_output, leaf.serial, leaf)
        leaf.order_entry = entry
        self._add(entry)
        if leaf.owner.has_quota:
            leaf.owner.leaves.add(entry)
        if leaf.priority and leaf.priority_ends < inf:
            self._expiries.add((leaf.priority_ends, leaf.serial, leaf))

    def discard(self, node: RadixNode) -> None:
        """Nothing happens when it is not in here. O(log leaves)."""
        entry = node.order_entry
        if entry is None:
            return
        node.order_entry = None
        waiting = self._waiting.get(node.owner)
        if waiting is not None and entry in waiting:
            waiting.remove(entry)
        else:
            self._remove(entry)
        if node.owner.has_quota:
            node.owner.leaves.remove(entry)
        if node.priority and node.priority_ends < inf:
            self._expiries.remove((node.priority_ends, node.serial, node))

    def end_priorities(self, seconds: float) -> None:
        """Let those fall back that end by now. O(log leaves) for each, O(1) when there are none."""
        while self._expiries and self._expiries[0][0] <= seconds:
            leaf = self._expiries[0][2]
            self.discard(leaf)
            leaf.priority = 0
            self.put(leaf)

    def coldest(self, seconds: float) -> RadixNode | None:
        """The leaf to evict from next, parked ones aside. O(queues), and as `end_priorities`."""
        self.end_priorities(seconds)
        heads = [head for head in self._heads if head is not None]
        if len(heads) > 1:
            lowest = min(heads)[0]
            heads = [head for head in heads if head[0] == lowest]
        if len(heads) > 1:
            return self._policy.choose(heads)[-1]
        return heads[0][-1] if heads else None

    def park(self, leaf: RadixNode) -> None:
        """Pass it over until its tenant has more than its floor. O(log leaves)."""
        assert leaf.order_entry is not None
        self._remove(leaf.order_entry)
        self._waiting.setdefault(leaf.owner, SortedList()).add(leaf.order_entry)

    def unpark(self, account: TenantAccount, num_leaves: int) -> None:
        """The tenant's coldest parked leaves count again, so many of them. O(num_leaves * log leaves)."""
        waiting = self._waiting.get(account)
        while waiting and num_leaves:
            entry = waiting.pop(0)
            self._add(entry)
            num_leaves -= 1

    def quota_changed(self, account: TenantAccount) -> None:
        """Take the tenant's leaves up anew. O(leaves log leaves)."""
        account.leaves.clear()
        self.unpark(account, len(self._waiting.get(account, ())))
        if account.has_quota:
            account.leaves.update(leaf.order_entry for leaf in self if leaf.owner is account)

    def check(self, evictable: Iterable[RadixNode]) -> None:
        """Raise AssertionError unless exactly `evictable` is in here, in order. For tests."""
        waiting = [entry for queue in self._waiting.values() for entry in queue]
        entries = [*(entry for queue in self._queues for entry in queue), *waiting]
        leaves = sorted(evictable, key=lambda leaf: leaf.serial)
        assert sorted(entries, key=lambda entry: entry[3]) == [leaf.order_entry for leaf in leaves]
        for account in {leaf.owner for leaf in leaves}:
            own = [entry for entry in entries if entry[4].owner is account and account.has_quota]
            assert list(account.leaves) == sorted(own)
        assert self._heads == [queue[0] if queue else None for queue in self._queues]

    def _add(self, entry: OrderEntry) -> None:
        number = entry[4].queue
        self._queues[number].add(entry)
        head = self._heads[number]
        if head is None or entry < head:
            self._heads[number] = entry

    def _remove(self, entry: OrderEntry) -> None:
        number = entry[4].queue
        queue = self._queues[number]
        if entry is self._heads[number]:
            queue.pop(0)
            self._heads[number] = queue[0] if queue else None
        else:
            queue.remove(entry)
