"""Siblings in the order of their tokens."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from sortedcontainers import SortedDict

from prefixcache.radix_node import RadixNode
from prefixcache.token_chunks import num_common_tokens


class Neighbour(NamedTuple):
    """A child that begins like the query."""

    node: RadixNode
    num_tokens: int


class SiblingIndex:
    """All nodes of a tree, sorted by parent, scope and first chunk.

    The child with the longest common prefix with a query is always next to the query's place
    in this order. One index serves the whole tree: nearly all nodes have few children, and a
    sorted container for each would outweigh the nodes.
    """

    __slots__ = ("_chunk_bytes", "_nodes")

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._nodes = SortedDict()  # see _key -> node

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def nodes(self) -> SortedDict:
        """All nodes by their keys; only to be taken apart."""
        return self._nodes

    def add(self, node: RadixNode) -> None:
        """O(log nodes)."""
        self._nodes[self._key_of(node)] = node

    def remove(self, node: RadixNode) -> None:
        """O(log nodes)."""
        del self._nodes[self._key_of(node)]

    def nearest(self, parent: RadixNode, scope: bytes, query: bytes) -> Neighbour | None:
        """The child of `parent` in `scope` with the longest common prefix with `query`.

        None when none shares a token. Requires: `query` is no longer than a chunk. O(log nodes).
        """
        if parent.is_leaf or not query:
            return None
        best = None
        for node in self.around(parent, scope, query):
            num_tokens = num_common_tokens(query, 0, len(query), node.edge)
            if num_tokens > (best.num_tokens if best else 0):
                best = Neighbour(node, num_tokens)
        return best

    def around(self, parent: RadixNode, scope: bytes, query: bytes) -> list[RadixNode]:
        """The children of `parent` in `scope` next to the place of `query`, at most two. O(log nodes)."""
        siblings = _siblings_key(parent, scope)
        nodes = (self._first_at_or_after(siblings, query), self._last_at_or_before(siblings, query))
        return [node for node in nodes if node is not None]

    def tail_within(self, parent: RadixNode, scope: bytes, first_chunk: bytes) -> RadixNode | None:
        """The tail under `parent` in `scope` that is a shorter beginning of `first_chunk`. O(log nodes).

        There is at most one, just before `first_chunk`: whatever lay between would begin with
        the tail too, and would have superseded it.
        """
        if parent.is_leaf:
            return None
        node = self._last_at_or_before(_siblings_key(parent, scope), first_chunk)
        if node is not None and len(node.edge) < len(first_chunk) and first_chunk.startswith(node.edge):
            return node
        return None

    def check(self, nodes: Iterable[RadixNode]) -> None:
        """Raise AssertionError unless exactly `nodes` are indexed, and no tail is superfluous. For tests."""
        assert dict(self._nodes) == {self._key_of(node): node for node in nodes}
        for key, next_key in pairwise(self._nodes):
            assert not next_key.startswith(key)

    def _first_at_or_after(self, siblings: bytes, query: bytes) -> RadixNode | None:
        return self._sibling(siblings, next(self._nodes.irange(minimum=siblings + query), None))

    def _last_at_or_before(self, siblings: bytes, query: bytes) -> RadixNode | None:
        return self._sibling(siblings, next(self._nodes.irange(maximum=siblings + query, reverse=True), None))

    def _sibling(self, siblings: bytes, found: bytes | None) -> RadixNode | None:
        if found is None or not found.startswith(siblings):
            return None
        node: RadixNode = self._nodes[found]
        return node

    def _key_of(self, node: RadixNode) -> bytes:
        assert node.parent is not None
        return _siblings_key(node.parent, node.scope) + node.edge[: self._chunk_bytes]


def _siblings_key(parent: RadixNode, scope: bytes) -> bytes:
    """What the keys of all children of one scope begin with, and no others: framed, and sorted by parent."""
    return parent.serial.to_bytes(8, "big") + len(scope).to_bytes(2, "big") + scope
