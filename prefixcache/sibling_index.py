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
        self._nodes = SortedDict()  # (parent's serial, scope, first chunk) -> node

    def __len__(self) -> int:
        return len(self._nodes)

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
        key = (parent.serial, scope, query)
        best = None
        for node in (self._first_at_or_after(key), self._last_at_or_before(key)):
            if node is not None:
                num_tokens = num_common_tokens(query, 0, len(query), node.edge)
                if num_tokens > (best.num_tokens if best else 0):
                    best = Neighbour(node, num_tokens)
        return best

    def tail_within(self, parent: RadixNode, scope: bytes, first_chunk: bytes) -> RadixNode | None:
        """The tail under `parent` in `scope` that is a shorter beginning of `first_chunk`. O(log nodes).

        There is at most one, just before `first_chunk`: whatever lay between would begin with
        the tail too, and would have superseded it.
        """
        if parent.is_leaf:
            return None
        node = self._last_at_or_before((parent.serial, scope, first_chunk))
        if node is not None and len(node.edge) < len(first_chunk) and first_chunk.startswith(node.edge):
            return node
        return None

    def check(self, nodes: Iterable[RadixNode]) -> None:
        """Raise AssertionError unless exactly `nodes` are indexed, and no tail is superfluous. For tests."""
        assert dict(self._nodes) == {self._key_of(node): node for node in nodes}
        keys = list(self._nodes)
        for (*siblings, first), (*next_siblings, second) in pairwise(keys):
            assert siblings != next_siblings or not second.startswith(first)

    def _first_at_or_after(self, key: tuple[int, bytes, bytes]) -> RadixNode | None:
        return self._sibling(key, next(self._nodes.irange(minimum=key), None))

    def _last_at_or_before(self, key: tuple[int, bytes, bytes]) -> RadixNode | None:
        return self._sibling(key, next(self._nodes.irange(maximum=key, reverse=True), None))

    def _sibling(
        self, key: tuple[int, bytes, bytes], found: tuple[int, bytes, bytes] | None
    ) -> RadixNode | None:
        if found is None or found[0] != key[0] or found[1] != key[1]:
            return None
        node: RadixNode = self._nodes[found]
        return node

    def _key_of(self, node: RadixNode) -> tuple[int, bytes, bytes]:
        assert node.parent is not None
        return (node.parent.serial, node.scope, node.edge[: self._chunk_bytes])
