"""The radix tree over token chunks: which prefix is in which blocks. Structure only, no counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from prefixcache.block_keys import KEY_BYTES, BlockKey, BlockKeys, unpack_keys
from prefixcache.block_pool import BlockId
from prefixcache.events import CachedRun
from prefixcache.graveyard import Pile
from prefixcache.namespace import PUBLIC_SCOPE, Namespace
from prefixcache.owned_nodes import OwnedNodes
from prefixcache.quota import TenantAccount
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


Branch = tuple[int, bytes, RadixNode, int]
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
        "_block_keys",
        "_block_size",
        "_chunk_bytes",
        "_chunk_hash",
        "_last_serial",
        "_node_of_last_block",
        "_owned",
        "_public",
        "_roots",
        "_siblings",
    )

    def __init__(
        self, block_size: int, chunk_hash: ChunkHash, block_keys: BlockKeys, public: TenantAccount
    ) -> None:
        """An empty tree; `public` owns its roots."""
        self._block_size = block_size
        self._block_keys = block_keys
        self._public = public
        self._chunk_bytes = block_size * TOKEN_BYTES
        self._chunk_hash = chunk_hash
        self._roots: dict[bytes, RadixNode] = {}
        self._siblings = SiblingIndex(self._chunk_bytes)
        self._owned = OwnedNodes()
        self._node_of_last_block: dict[BlockId, RadixNode] = {}
        self._last_serial = 0

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def chunk_bytes(self) -> int:
        return self._chunk_bytes

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

    def roots(self) -> Iterable[tuple[bytes, RadixNode]]:
        """The domains and their roots."""
        return self._roots.items()

    def root_of(self, domain: bytes) -> RadixNode:
        """The root of a domain; a new one belongs to the tree as soon as something is inserted below it."""
        return self._roots.get(domain) or self._new_node((domain, 0), None, b"", [], self._public)

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
        root = self.root_of(domain)
        first_hash = self._chunk_hash(tokens[: self._chunk_bytes])
        public = self.follow(PUBLIC_SCOPE, root, 0, tokens, limit, first_hash)
        exit_offset, _, exit_node, num_exit_blocks = public
        if num_exit_blocks < len(exit_node.block_ids):
            assert exit_node.parent is not None
            exit_node = exit_node.parent
            exit_offset -= num_exit_blocks * self._chunk_bytes
        longest, max_offset = [public], public[0]
        while exit_offset >= first_exit:
            exit_hash = None if exit_offset else first_hash
            private = self.follow(namespace.scope, exit_node, exit_offset, tokens, limit, exit_hash)
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
        upper = self._link(parent, node.key, node.edge[:cut], node.block_ids[:num_blocks], node.owner)
        upper.copy_use_of(node)
        upper.packed_keys = node.packed_keys[: num_blocks * KEY_BYTES]
        node.packed_keys = node.packed_keys[num_blocks * KEY_BYTES :]
        node.edge = node.edge[cut:]
        node.block_ids = node.block_ids[num_blocks:]
        node.depth += num_blocks
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

    def reserve_serials(self, count: int) -> int:
        """The first of `count` serials that no node has or will get by itself."""
        self._last_serial += count
        return self._last_serial - count + 1

    def insert(
        self,
        parent: RadixNode,
        scope: bytes,
        edge: bytes,
        block_ids: list[BlockId],
        owner: TenantAccount,
        *,
        serial: int | None = None,
    ) -> RadixNode:
        """Put a run, or a tail, as a new node below `parent`, with the next serial unless one is given.

        Requires: not `is_taken`, no `superseded_tail`, `edge` covers `block_ids`. O(bytes + log nodes).
        """
        if parent.is_root:
            self._roots[parent.scope] = parent
        return self._link(parent, self._key(scope, edge), edge, block_ids, owner, serial)

    def grow(self, leaf: RadixNode, edge: bytes, block_ids: list[BlockId]) -> None:
        """Append whole chunks to a leaf that is no tail. O(bytes)."""
        assert leaf.is_leaf
        assert not leaf.is_tail(self._block_size)
        del self._node_of_last_block[leaf.block_ids[-1]]
        leaf.lost_key = None
        leaf.edge += edge
        leaf.block_ids += block_ids
        self._node_of_last_block[block_ids[-1]] = leaf

    def shrink(self, node: RadixNode, num_blocks: int) -> None:
        """Drop the last `num_blocks` of a leaf, and the leaf when none is left. O(bytes + log nodes)."""
        assert node.is_leaf
        del self._node_of_last_block[node.block_ids[-1]]
        if num_blocks < len(node.block_ids):
            del node.block_ids[-num_blocks:]
            node.edge = node.edge[: len(node.block_ids) * self._chunk_bytes]
            node.packed_keys = node.packed_keys[: len(node.block_ids) * KEY_BYTES]
            self._node_of_last_block[node.block_ids[-1]] = node
            return
        parent = node.parent
        assert parent is not None
        self._siblings.remove(node)
        self._owned.remove(node)
        del parent.children[node.key]
        if parent.is_root and parent.is_leaf:
            del self._roots[parent.scope]

    def children_with_hash(self, parent: RadixNode, chunk: bytes) -> list[RadixNode]:
        """The children whose first chunk may be this, whatever their scope. O(children)."""
        chunk_hash = self._chunk_hash(chunk)
        return [child for (_, first_hash), child in parent.children.items() if first_hash == chunk_hash]

    def own_children_with_hash(
        self, owner: TenantAccount, parent: RadixNode, chunk: bytes, max_scopes: int
    ) -> list[RadixNode]:
        """The same of one owner, in the `max_scopes` of its scopes that came last. O(max_scopes)."""
        chunk_hash = self._chunk_hash(chunk)
        scopes = islice(self._owned.scopes_of(owner), max_scopes)
        found = (parent.children.get((scope, chunk_hash)) for scope in scopes)
        return [child for child in found if child is not None]

    def owned_by(self, owner: TenantAccount) -> Iterator[RadixNode]:
        """The nodes of one owner, in no order. Requires: no change meanwhile. O(those nodes)."""
        return self._owned.of(owner)

    def children_around(self, parent: RadixNode, scope: bytes, query: bytes) -> list[RadixNode]:
        """The children in a scope that stand next to where `query` would, at most two. O(log nodes)."""
        return self._siblings.around(parent, scope, query)

    def runs(self) -> Iterator[CachedRun]:
        """All whole blocks with their keys, parents first. Requires: no change meanwhile. O(blocks)."""
        for _, node in self.nodes():
            if not node.is_tail(self._block_size):
                yield CachedRun(
                    self.key_above(node), unpack_keys(self.keys_of(node)), node.edge, node.is_public
                )

    def keys_of(self, node: RadixNode) -> bytes:
        """The keys of a node's whole chunks, `KEY_BYTES` each.

        Kept once computed: O(1) the second time, at first O(tokens of the path above not asked for yet).
        """
        if len(node.packed_keys) == self._num_chunks(node) * KEY_BYTES:
            return node.packed_keys
        path = [node]
        above = node.parent
        while above is not None and len(above.packed_keys) < self._num_chunks(above) * KEY_BYTES:
            path.append(above)
            above = above.parent
        for member in reversed(path):
            done = member.packed_keys
            parent_key = BlockKey(done[-KEY_BYTES:]) if done else self.key_above(member)
            missing = member.edge[len(done) // KEY_BYTES * self._chunk_bytes :] if done else member.edge
            member.packed_keys = done + b"".join(self._block_keys.chain(parent_key, missing))
        return node.packed_keys

    def key_above(self, node: RadixNode) -> BlockKey:
        """The key that the chain of a node starts from. Costs as `keys_of`."""
        parent = node.parent
        assert parent is not None
        if parent.is_root:
            if not parent.packed_keys:
                parent.packed_keys = self._block_keys.root(parent.scope)
            return self._block_keys.enter(BlockKey(parent.packed_keys), node.scope)
        last_key = BlockKey(self.keys_of(parent)[-KEY_BYTES:])
        return last_key if parent.scope == node.scope else self._block_keys.enter(last_key, node.scope)

    def key_behind(self, end: RadixNode, num_end_blocks: int, scope: bytes, chunk: bytes) -> BlockKey:
        """The key of a block behind a path, whether or not it is there. Costs as `keys_of`."""
        parent_key = self.key_at(end, num_end_blocks)
        if end.is_root or end.scope != scope:
            parent_key = self._block_keys.enter(parent_key, scope)
        return self._block_keys.chain(parent_key, chunk)[0]

    def key_at(self, end: RadixNode, num_end_blocks: int) -> BlockKey:
        """The key of the last block of a path, or what the empty path starts from. Costs as `keys_of`."""
        if not num_end_blocks:
            return self._block_keys.root(end.scope)
        return BlockKey(self.keys_of(end)[(num_end_blocks - 1) * KEY_BYTES : num_end_blocks * KEY_BYTES])

    def clear(self) -> list[Pile]:
        """Drop all nodes, and return what held them, to be taken apart. O(scopes)."""
        piles: list[Pile] = [
            *self._owned.sets(),
            self._siblings.nodes,
            self._node_of_last_block,
            self._roots,
        ]
        self._roots = {}
        self._siblings = SiblingIndex(self._chunk_bytes)
        self._owned = OwnedNodes()
        self._node_of_last_block = {}
        return piles

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests."""
        nodes = [node for _, node in self.nodes()]
        for node in nodes:
            node.check(self._block_size)
            assert node.key == self._key(node.scope, node.edge)
        self._siblings.check(nodes)
        self._owned.check(nodes)
        assert self._node_of_last_block == {node.block_ids[-1]: node for node in nodes}
        block_ids = [block_id for node in nodes for block_id in node.block_ids]
        assert len(block_ids) == len(set(block_ids))
        assert all(root.children for root in self._roots.values())

    def _num_chunks(self, node: RadixNode) -> int:
        return len(node.edge) // self._chunk_bytes

    def follow(
        self,
        scope: bytes,
        node: RadixNode,
        offset: int,
        tokens: bytes,
        limit: int,
        next_hash: int | None = None,
    ) -> Branch:
        """Go down from the end of `node`, `offset` bytes into `tokens`, along nodes of `scope`.

        `next_hash` is that of the next chunk if it is known already.
        """
        chunk_bytes = self._chunk_bytes
        num_blocks = len(node.block_ids)
        while offset + chunk_bytes <= limit:
            if next_hash is None:
                next_hash = self._chunk_hash(tokens[offset : offset + chunk_bytes])
            child = node.children.get((scope, next_hash))
            next_hash = None
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

    def _partial(self, branch: Branch, tokens: bytes, limit: int) -> tuple[BlockId, int] | None:
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
        self,
        parent: RadixNode,
        key: ChildKey,
        edge: bytes,
        block_ids: list[BlockId],
        owner: TenantAccount,
        serial: int | None = None,
    ) -> RadixNode:
        node = self._new_node(key, parent, edge, block_ids, owner, serial)
        parent.children[key] = node
        parent.lost_key = None
        self._siblings.add(node)
        self._owned.add(node)
        self._node_of_last_block[block_ids[-1]] = node
        return node

    def _new_node(
        self,
        key: ChildKey,
        parent: RadixNode | None,
        edge: bytes,
        block_ids: list[BlockId],
        owner: TenantAccount,
        serial: int | None = None,
    ) -> RadixNode:
        if serial is None:
            serial = self.reserve_serials(1)
        return RadixNode(serial=serial, key=key, parent=parent, edge=edge, block_ids=block_ids, owner=owner)
