"""How a prompt gets back what the tiers have of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prefixcache.block_keys import BlockKey, BlockKeys
from prefixcache.block_pool import BlockId
from prefixcache.cached_blocks import CachedBlocks
from prefixcache.namespace import PUBLIC_SCOPE, Namespace
from prefixcache.radix_node import RadixNode, Visit
from prefixcache.radix_tree import Path, RadixTree
from prefixcache.tier import TieredBlock, TieredPath
from prefixcache.tiers import Tiers
from prefixcache.token_chunks import TOKEN_BYTES, num_common_tokens, num_declared_chunks


class Restorable(NamedTuple):
    """What the tiers have behind a path, and is copied sooner than computed."""

    blocks: Sequence[TieredBlock]
    num_tokens: int
    """Tokens that need not be computed then."""
    num_partial: int
    """1 when only a part of the last block's rows may be used, since a token has to be left to compute."""


NOTHING = Restorable((), 0, 0)


class Restorer:
    """Finds blocks of the tiers that go on where the tree's path ends, and brings them into the tree."""

    __slots__ = ("_block_keys", "_blocks", "_chunk_bytes", "_tiers", "_tree")

    def __init__(self, tree: RadixTree, blocks: CachedBlocks, tiers: Tiers, block_keys: BlockKeys) -> None:
        self._tree = tree
        self._blocks = blocks
        self._tiers = tiers
        self._block_keys = block_keys
        self._chunk_bytes = tree.chunk_bytes

    @property
    def has_blocks(self) -> bool:
        """Whether the tiers have anything at all. O(tiers)."""
        return self._tiers.has_blocks

    def find(
        self,
        path: Path,
        tokens: bytes,
        namespace: Namespace,
        num_readable_tokens: int,
        num_public_tokens: int,
    ) -> Restorable:
        """The longest run of blocks behind `path`, which the tree gave for the same arguments.

        Each block is found by its key and confirmed by comparing all tokens up to its end, and who may
        read it: a collision costs a miss. Nothing, when what the tree has of the next block is no less.
        Changes nothing. O(1) when there is no such block, else O(tokens).
        """
        num_tokens, block_size = len(tokens) // TOKEN_BYTES, self._tree.block_size
        # Of the last block, a part may be readable; but the prompt has all its tokens.
        end_chunk = min(-(-num_readable_tokens // block_size), num_tokens // block_size)
        if path.num_chunks >= end_chunk:
            return NOTHING
        search = _Search(self._tiers, self._block_keys, tokens, namespace, end_chunk, self._chunk_bytes)
        key = self._tree.key_at(path.end, path.num_end_blocks)
        if path.end.is_root or path.end.is_public:
            num_public_chunks = num_declared_chunks(num_public_tokens, num_tokens, block_size)
            found = search.longest(key, path.num_chunks, num_public_chunks)
        else:
            num_above = sum(len(node.block_ids) for node in path.end.lineage() if node.is_public)
            found = search.follow(key, path.num_chunks, (num_above, namespace.scope))
        found = found[: self._tiers.num_worth_restoring(found)]
        end_token = (path.num_chunks + len(found)) * block_size
        num_restored = min(end_token, num_readable_tokens) - path.num_chunks * block_size
        if num_restored <= (path.partial[1] if path.partial else 0):
            return NOTHING
        return Restorable(found, num_restored, int(end_token > num_readable_tokens))

    def take(self, restorable: Restorable) -> None:
        """Take what was found out of the tiers, before anything is evicted to them. O(blocks)."""
        self._tiers.take(restorable.blocks)

    def restore(
        self,
        end: RadixNode,
        start_chunk: int,
        restorable: Restorable,
        block_ids: list[BlockId],
        tokens: bytes,
        visit: Visit,
    ) -> None:
        """Order the copies to these blocks, and put those that are read as a whole into the tree.

        Requires: taken before; the blocks of the pool are live, and `end` is the end of the path touched
        last. O(bytes + log nodes).
        """
        blocks = restorable.blocks
        self._tiers.restore(blocks, block_ids, num_staying=restorable.num_partial)
        num_whole = len(blocks) - restorable.num_partial
        num_public = sum(block.path.readers(block.num_chunks) is None for block in blocks[:num_whole])
        node: RadixNode | None = end
        for first, last in ((0, num_public), (num_public, num_whole)):
            if first == last or node is None:
                continue  # None: its place is taken by another chunk, so the rest stays out of the tree
            scope = PUBLIC_SCOPE if last == num_public else blocks[first].path.scope
            start, stop = (start_chunk + first) * self._chunk_bytes, (start_chunk + last) * self._chunk_bytes
            node = self._blocks.insert(
                node, scope, tokens[start:stop], block_ids[first:last], visit, is_output=False
            )


class _Search:
    """Looks for the blocks of one prompt."""

    def __init__(
        self,
        tiers: Tiers,
        block_keys: BlockKeys,
        tokens: bytes,
        namespace: Namespace,
        end_chunk: int,
        chunk_bytes: int,
    ) -> None:
        self._tiers = tiers
        self._block_keys = block_keys
        self._tokens = tokens
        self._namespace = namespace
        self._end_chunk = end_chunk
        self._chunk_bytes = chunk_bytes
        self._compared: tuple[TieredPath | None, int] = (None, 0)
        """The path compared last, which is that of many blocks, and how many bytes it has in common."""

    def longest(self, key: BlockKey, start: int, num_public_chunks: int) -> list[TieredBlock]:
        """The longest run behind a public path of `start` chunks: public blocks, then the namespace's own.

        The first `num_public_chunks` chunks are looked for among public blocks only.
        """
        public = self.follow(key, start, None)
        longest = public
        for num_public in range(len(public), -1, -1):
            exit_chunk = start + num_public
            if exit_chunk < num_public_chunks:
                break
            above = public[num_public - 1].key if num_public else key
            entered = self._block_keys.enter(above, self._namespace.scope)
            private = self.follow(entered, exit_chunk, (exit_chunk, self._namespace.scope))
            if num_public + len(private) > len(longest):
                longest = public[:num_public] + private
        return longest

    def follow(self, key: BlockKey, start: int, readers: tuple[int, bytes] | None) -> list[TieredBlock]:
        """The run behind a key of blocks for these readers; see `TieredPath.readers`."""
        found: list[TieredBlock] = []
        for chunk in range(start, self._end_chunk):
            first = chunk * self._chunk_bytes
            (key,) = self._block_keys.chain(key, self._tokens[first : first + self._chunk_bytes])
            block = self._tiers.get(key)
            if block is None or not self._confirms(block, chunk + 1, readers):
                break
            found.append(block)
        return found

    def _confirms(self, block: TieredBlock, num_chunks: int, readers: tuple[int, bytes] | None) -> bool:
        path = block.path
        if self._compared[0] is not path:
            num_common = num_common_tokens(self._tokens, 0, len(self._tokens), path.tokens)
            self._compared = (path, num_common * TOKEN_BYTES)
        return (
            block.num_chunks == num_chunks
            and path.domain == self._namespace.domain
            and path.readers(num_chunks) == readers
            and self._compared[1] >= num_chunks * self._chunk_bytes
        )
