"""One node of the radix tree."""

from __future__ import annotations

from prefixcache.block_pool import BlockId
from prefixcache.namespace import PUBLIC_SCOPE
from prefixcache.token_chunks import TOKEN_BYTES

ChildKey = tuple[bytes, int | bytes]
"""Scope, and the hash of the first chunk. A tail, which has no whole chunk, goes by its bytes."""


class RadixNode:
    """A run of chunks and the blocks that hold their KV.

    A node whose edge is shorter than one chunk is a *tail*: one block, partly filled, no
    children. It is never shared, only copied from.

    Invariants, proved by `check`:
    - every chunk has one block; only a tail has less than one chunk;
    - a child has its parent's scope, unless the parent is public;
    - a node was used no later than its parent, for every use goes through the parent.
    """

    __slots__ = ("block_ids", "children", "edge", "key", "last_used", "parent", "scope", "serial")

    def __init__(
        self,
        *,
        serial: int,
        key: ChildKey,
        parent: RadixNode | None,
        edge: bytes,
        block_ids: list[BlockId],
        last_used: int,
    ) -> None:
        self.serial = serial
        """Unique in the tree, for as long as the node lives."""
        self.key = key
        """What the parent finds it by. A root, which has no parent, goes by its domain."""
        self.scope = key[0]
        self.parent = parent
        self.edge = edge
        """Packed tokens of the run."""
        self.block_ids = block_ids
        self.children: dict[ChildKey, RadixNode] = {}
        self.last_used = last_used
        """Logical time; see `CachedBlocks`."""

    @property
    def is_root(self) -> bool:
        return self.parent is None

    @property
    def is_leaf(self) -> bool:
        return not self.children

    def is_tail(self, block_size: int) -> bool:
        return len(self.edge) < block_size * TOKEN_BYTES

    def lineage(self) -> list[RadixNode]:
        """The nodes from below the root down to this one. O(depth)."""
        nodes = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def check(self, block_size: int) -> None:
        """Raise AssertionError if an invariant is broken. For tests."""
        parent = self.parent
        assert parent is not None
        assert parent.children[self.key] is self
        num_tokens, rest = divmod(len(self.edge), TOKEN_BYTES)
        assert rest == 0
        assert num_tokens > 0
        if self.is_tail(block_size):
            assert len(self.block_ids) == 1
            assert self.is_leaf
        else:
            assert num_tokens == len(self.block_ids) * block_size
        if not parent.is_root:
            assert not parent.is_tail(block_size)
            assert parent.scope in (PUBLIC_SCOPE, self.scope)
            assert parent.last_used >= self.last_used
