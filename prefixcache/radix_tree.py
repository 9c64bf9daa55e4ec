"""The radix tree over token chunks: which prefix is in which blocks. Structure only, no counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prefixcache.block_pool import BlockId
from prefixcache.namespace import PUBLIC_SCOPE, Namespace
from prefixcache.radix_node import ChildKey, RadixNode
from prefixcache.sibling_index import SiblingIndex
from prefixcache.token_chunks import TOKEN_BYTES, ChunkHash, num_common_tokens


class Match(NamedTuple):
    """What the cache holds of a prompt."""

    block_ids: list[BlockId]
    """Whole blocks, which can be shared."""
    num_tokens: int
    """Tokens matched, those of `partial` included."""
    partial: tuple[BlockId, int] | None
    """A further block whose first so many slots match; they can be copied."""


class Path(NamedTuple):
    """The longest way through the tree along some tokens."""

    end: RadixNode
    """The last node; the root when no chunk was matched."""
    num_end_blocks: int
    """Blocks matched in the last node; in those above it, all are."""
    num_chunks: int
    num_tokens: int
    """Tokens matched, those of `partial` included."""
    partial: tuple[BlockId, int] | None
    """A further block, in the last node or in a child of it, whose first so many slots match."""

    @property
    def block_ids(self) -> list[BlockId]:
        """The blocks of all matched chunks. O(blocks)."""
        if self.num_chunks == self.num_end_blocks:  # one node holds them all
            return self.end.block_ids[: self.num_end_blocks]
        block_ids: list[BlockId] = []
        for node in self.end.lineage():
            block_ids += node.block_ids
        del block_ids[self.num_chunks :]
        return block_ids


_Branch = tuple[int, bytes, RadixNode, int]
"""How far one scope can be followed: bytes matched in all, scope, last node, blocks matched in it."""


class RadixTree:
    """One tree per domain, all over chunks of `block_size` tokens.

    A child is found by its scope and the hash of its first chunk, and then confirmed by comparing
    the bytes of its whole edge. So a match costs O(edges) probes and one compare of memory, and a
    hash collision costs a miss: a run whose key is taken by another chunk cannot be inserted.

    A node is public or belongs to one scope. Private nodes hang under public ones, never the
    other way round, so whoever may read a node may read all that is above it.

    Invariants, proved by `check`: those of `RadixNode` hold for every node; `SiblingIndex` and the
    map of last blocks hold exactly the nodes; no block is in two places; no root is without children.
    """

    __slots__ = (
        "_block_size",
        "_chunk_bytes",
        "_chunk_hash",
        "_last_serial",
        "_node_of_last_block",
        "_roots",
        "_siblings",
    )

    def __init__(self, block_size: int, chunk_hash: ChunkHash) -> None:
        self._block_size = block_size
        self._chunk_bytes = block_size * TOKEN_BYTES
        self._chunk_hash = chunk_hash
        self._roots: dict[bytes, RadixNode] = {}
        self._siblings = SiblingIndex(self._chunk_bytes)
        self._node_of_last_block: dict[BlockId, RadixNode] = {}
        self._last_serial = 0

    @property
    def num_nodes(self) -> int:
        """Nodes below the roots."""
        return len(self._siblings)

    def nodes(self, max_depth: int = 0) -> Iterator[tuple[bytes, RadixNode]]:
        """All nodes with their domains, parents first, down to `max_depth` below the roots (0: all).

        Requires: no change meanwhile. O(nodes).
        """
        for domain, root in self._roots.items():
            level, depth = [root], 0
            while level and (depth < max_depth or not max_depth):
                level = [child for node in level for child in node.children.values()]
                depth += 1
                for node in level:
                    yield domain, node

    def node_ending_with(self, block_id: BlockId) -> RadixNode | None:
        """The node whose last block this is. O(1)."""
        return self._node_of_last_block.get(block_id)

    def walk(self, tokens: bytes, namespace: Namespace, num_tokens: int, num_public_chunks: int) -> Path:
        """The longest path along the first `num_tokens` of `tokens`. Changes nothing.

        The first `num_public_chunks` chunks are looked for among public nodes only. Behind them
        the path may go on through public nodes, and leave them at the end of any for the
        namespace's own. Of equally long paths, the one that stays public longest is taken.
        O(edges + log nodes).
        """
        limit = num_tokens * TOKEN_BYTES
        first_exit = num_public_chunks * self._chunk_bytes
        domain = namespace.domain
        # A new root belongs to the tree as soon as something is inserted below it.
        root = self._roots.get(domain) or self._new_node((domain, 0), None, b"", [], last_used=0)
        public = self._follow(PUBLIC_SCOPE, root, 0, tokens, limit)
        exit_offset, _, exit_node, num_exit_blocks = public
        if num_exit_blocks < len(exit_node.block_ids):
            assert exit_node.parent is not None
            exit_node = exit_node.parent
            exit_offset -= num_exit_blocks * self._chunk_bytes
        longest, max_offset = [public], public[0]
        while exit_offset >= first_exit:
            private = self._follow(namespace.scope, exit_node, exit_offset, tokens, limit)
            if private[0] > max_offset:
                longest, max_offset = [private], private[0]
            elif private[0] == max_offset:
                longest.append(private)
            if exit_node.parent is None:
                break
            exit_offset -= len(exit_node.edge)
            exit_node = exit_node.parent
        best, partial = longest[0], self._partial(longest[0], tokens, limit)
        for branch in longest[1:]:
            other = self._partial(branch, tokens, limit)
            if other is not None and (partial is None or other[1] > partial[1]):
                best, partial = branch, other
        offset, _, end, num_end_blocks = best
        num_tokens = offset // TOKEN_BYTES + (partial[1] if partial else 0)
        return Path(end, num_end_blocks, offset // self._chunk_bytes, num_tokens, partial)

    def split(self, node: RadixNode, num_blocks: int) -> RadixNode:
        """Cut `node` behind its first `num_blocks` and return the new node that holds those.

        The old object keeps the deeper part, its children and its age. O(bytes of the edge).
        """
        parent, cut = node.parent, num_blocks * self._chunk_bytes
        assert parent is not None
        assert 0 < num_blocks < len(node.block_ids)
        self._siblings.remove(node)
        upper = self._link(
            parent, node.key, node.edge[:cut], node.block_ids[:num_blocks], last_used=node.last_used
        )
        node.edge = node.edge[cut:]
        node.block_ids = node.block_ids[num_blocks:]
        node.parent = upper
        node.key = self._key(node.scope, node.edge)
        upper.children[node.key] = node
        self._siblings.add(node)
        return upper

    def is_taken(self, parent: RadixNode, scope: bytes, edge: bytes) -> bool:
        """Whether a child of `parent` stands where a run that begins like `edge` would have to."""
        return self._key(scope, edge) in parent.children

    def superseded_tail(self, parent: RadixNode, scope: bytes, edge: bytes) -> RadixNode | None:
        """The tail under `parent` that `edge` would make superfluous: all its tokens begin `edge`."""
        return self._siblings.tail_within(parent, scope, edge[: self._chunk_bytes])

    def insert(
        self, parent: RadixNode, scope: bytes, edge: bytes, block_ids: list[BlockId], *, last_used: int
    ) -> RadixNode:
        """Put a run, or a tail, below `parent`, and return the node that now ends with it.

        A leaf of the same scope grows instead of getting an only child. Requires: not `is_taken`,
        no `superseded_tail`, `edge` covers `block_ids`. O(bytes + log nodes).
        """
        grows = parent.is_leaf and not parent.is_root and parent.scope == scope
        if grows and len(edge) >= self._chunk_bytes:
            del self._node_of_last_block[parent.block_ids[-1]]
            parent.edge += edge
            parent.block_ids += block_ids
            parent.last_used = last_used
            self._node_of_last_block[block_ids[-1]] = parent
            return parent
        if parent.is_root:
            self._roots[parent.scope] = parent
        return self._link(parent, self._key(scope, edge), edge, block_ids, last_used=last_used)

    def shrink(self, node: RadixNode, num_blocks: int) -> None:
        """Drop the last `num_blocks` of a leaf, and the leaf when none is left. O(bytes + log nodes)."""
        assert node.is_leaf
        del self._node_of_last_block[node.block_ids[-1]]
        if num_blocks < len(node.block_ids):
            del node.block_ids[-num_blocks:]
            node.edge = node.edge[: len(node.block_ids) * self._chunk_bytes]
            self._node_of_last_block[node.block_ids[-1]] = node
            return
        parent = node.parent
        assert parent is not None
        self._siblings.remove(node)
        del parent.children[node.key]
        if parent.is_root and parent.is_leaf:
            del self._roots[parent.scope]

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests."""
        nodes = [node for _, node in self.nodes()]
        for node in nodes:
            node.check(self._block_size)
            assert node.key == self._key(node.scope, node.edge)
        self._siblings.check(nodes)
        assert self._node_of_last_block == {node.block_ids[-1]: node for node in nodes}
        block_ids = [block_id for node in nodes for block_id in node.block_ids]
        assert len(block_ids) == len(set(block_ids))
        assert all(root.children for root in self._roots.values())

    def _follow(self, scope: bytes, node: RadixNode, offset: int, tokens: bytes, limit: int) -> _Branch:
        """Go down from the end of `node`, `offset` bytes into `tokens`, along nodes of `scope`."""
        chunk_bytes = self._chunk_bytes
        num_blocks = len(node.block_ids)
        while offset + chunk_bytes <= limit:
            child = node.children.get((scope, self._chunk_hash(tokens[offset : offset + chunk_bytes])))
            if child is None:
                break
            if tokens.startswith(child.edge, offset):
                num_matched = min(len(child.block_ids), (limit - offset) // chunk_bytes)
            else:
                num_matched = num_common_tokens(tokens, offset, limit, child.edge) // self._block_size
                if num_matched == 0:  # another chunk with the same hash
                    break
            node, num_blocks = child, num_matched
            offset += num_matched * chunk_bytes
            if num_matched < len(child.block_ids):
                break
        return offset, scope, node, num_blocks

    def _partial(self, branch: _Branch, tokens: bytes, limit: int) -> tuple[BlockId, int] | None:
        """The block behind `branch` that begins with the most of the next tokens, and how many."""
        offset, scope, end, num_blocks = branch
        if num_blocks < len(end.block_ids):
            start = num_blocks * self._chunk_bytes
            num_tokens = num_common_tokens(tokens, offset, limit, end.edge[start : start + self._chunk_bytes])
            return (end.block_ids[num_blocks], num_tokens) if num_tokens else None
        query = tokens[offset : min(offset + self._chunk_bytes, limit)]
        neighbour = self._siblings.nearest(end, scope, query)
        return (neighbour.node.block_ids[0], neighbour.num_tokens) if neighbour else None

    def _key(self, scope: bytes, edge: bytes) -> ChildKey:
        is_tail = len(edge) < self._chunk_bytes
        return (scope, edge if is_tail else self._chunk_hash(edge[: self._chunk_bytes]))

    def _link(
        self, parent: RadixNode, key: ChildKey, edge: bytes, block_ids: list[BlockId], *, last_used: int
    ) -> RadixNode:
        node = self._new_node(key, parent, edge, block_ids, last_used=last_used)
        parent.children[key] = node
        self._siblings.add(node)
        self._node_of_last_block[block_ids[-1]] = node
        return node

    def _new_node(
        self,
        key: ChildKey,
        parent: RadixNode | None,
        edge: bytes,
        block_ids: list[BlockId],
        *,
        last_used: int,
    ) -> RadixNode:
        self._last_serial += 1
        return RadixNode(
            serial=self._last_serial,
            key=key,
            parent=parent,
            edge=edge,
            block_ids=block_ids,
            last_used=last_used,
        )
