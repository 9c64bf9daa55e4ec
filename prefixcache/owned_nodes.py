"""The nodes of a tree by owner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prefixcache.quota import TenantAccount
from prefixcache.radix_node import RadixNode


class OwnedNodes:
    """Finds one owner's nodes and scopes at a cost that does not depend on what others have.

    Invariant, proved by `check`: every node of the tree is here once, under its owner and its scope.
    """

    __slots__ = ("_nodes",)

    def __init__(self) -> None:
        self._nodes: dict[TenantAccount, dict[bytes, set[RadixNode]]] = {}

    def add(self, node: RadixNode) -> None:
        """O(1)."""
        self._nodes.setdefault(node.owner, {}).setdefault(node.scope, set()).add(node)

    def remove(self, node: RadixNode) -> None:
        """O(1)."""
        scopes = self._nodes[node.owner]
        scopes[node.scope].remove(node)
        if not scopes[node.scope]:
            del scopes[node.scope]
        if not scopes:
            del self._nodes[node.owner]

    def of(self, owner: TenantAccount) -> Iterator[RadixNode]:
        """The owner's nodes, in no order. Requires: no change meanwhile. O(those nodes)."""
        for nodes in self._nodes.get(owner, {}).values():
            yield from nodes

    def scopes_of(self, owner: TenantAccount) -> Iterator[bytes]:
        """The scopes in which the owner has nodes, the one that came last first. O(scopes taken)."""
        return reversed(self._nodes.get(owner, {}))

    def sets(self) -> list[set[RadixNode]]:
        """What holds the nodes; only to be taken apart. O(scopes)."""
        return [nodes for scopes in self._nodes.values() for nodes in scopes.values()]

    def check(self, nodes: Iterable[RadixNode]) -> None:
        """Raise AssertionError unless exactly `nodes` are here. For tests."""
        expected: dict[TenantAccount, dict[bytes, set[RadixNode]]] = {}
        for node in nodes:
            expected.setdefault(node.owner, {}).setdefault(node.scope, set()).add(node)
        assert self._nodes == expected
