"""The prefix cache: which blocks a sequence may read, and which it has to fill itself."""

from __future__ import annotations

from collections import Counter

from xxhash import xxh3_64_intdigest

from prefixcache.block_pool import BlockId, BlockPool, OnFree
from prefixcache.cached_blocks import CachedBlocks
from prefixcache.errors import (
    ForeignHandleError,
    HandleReleasedError,
    InvalidArgumentError,
    OutOfBlocksError,
    PendingCopiesError,
)
from prefixcache.handle import BlockCopy, CacheHandle
from prefixcache.inspection import CacheStats, NodeDump, dump_node
from prefixcache.namespace import PUBLIC_SCOPE, Namespace
from prefixcache.radix_node import RadixNode
from prefixcache.radix_tree import Match, Path, RadixTree
from prefixcache.token_chunks import TOKEN_BYTES, ChunkHash, TokenIds, pack_tokens


class PrefixCache:
    """Shares the KV blocks of common prompt prefixes between sequences. Holds no tensors.

    A sequence acquires a handle, extends it token by token, publishes the rows it has written,
    and releases it. What was published stays in a radix tree until its blocks are needed. The
    caller owns the tensors, and executes the copies that the cache orders.

    Time is logical: every acquire and every publish that changes the tree is one tick.
    One thread at a time.

    Invariants, proved by `check`:
    - free, idle and live blocks are disjoint and sum to the pool;
    - count(block) = tables of live handles that hold it + pending copies that read it
      + 1 if the tree holds it;
    - the cached blocks of a table are its first ones, and the first ones of one path, from the
      root, that has the handle's tokens and that the handle's namespace may read. So nothing
      idle is ever above something live;
    - those of `CachedBlocks`, and of every live handle.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int = 16,
        chunk_hash: ChunkHash = xxh3_64_intdigest,
        on_free: OnFree | None = None,
    ) -> None:
        """An empty cache.

        `chunk_hash` may be replaced to provoke collisions; `on_free` is told which blocks have
        just become free, so that a test can poison them. Raises InvalidArgumentError when
        `block_size` is not a power of two, or when there is no block.
        """
        if block_size < 1 or block_size & (block_size - 1):
            raise InvalidArgumentError(f"block_size is {block_size}; give a power of two")
        self._block_size = block_size
        self._chunk_bytes = block_size * TOKEN_BYTES
        self._pool = BlockPool(num_blocks, on_free=on_free)
        self._tree = RadixTree(block_size, chunk_hash)
        self._blocks = CachedBlocks(self._pool, self._tree)
        self._live_handles: set[CacheHandle] = set()
        self._num_copied = 0

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def num_available_blocks(self) -> int:
        """Blocks that can be had: the free ones, and the idle ones by eviction."""
        return self._blocks.num_available

    def match(self, token_ids: TokenIds, namespace: Namespace, *, num_public_tokens: int = 0) -> Match:
        """The longest cached prefix that `acquire` would find now; always less than the whole prompt.

        Changes nothing, not even ages. Raises InvalidArgumentError.
        O(edges + blocks + log nodes) for packed tokens.
        """
        tokens = pack_tokens(token_ids)
        path = self._walk_prompt(tokens, namespace, num_public_tokens)
        return Match(path.block_ids, path.num_tokens, path.partial)

    def acquire(
        self,
        token_ids: TokenIds,
        namespace: Namespace,
        *,
        num_public_tokens: int = 0,
        use_cache: bool = True,
    ) -> CacheHandle:
        """Take room for a whole prompt, sharing what is cached of it.

        At least one token is left to compute, so that there are logits. Chunks wholly inside the
        first `num_public_tokens` are looked for among public nodes only, and will be published as
        public. Behind the last shared block, the longest partial match is ordered as a copy; it
        is left out when the pool is too full to keep its source. Without `use_cache` nothing is
        shared, now or later.

        Raises InvalidArgumentError, or OutOfBlocksError if the prompt finds no room; nothing has
        changed then. O(edges + blocks + evicted * log leaves).
        """
        tokens = pack_tokens(token_ids)
        if not tokens:
            raise InvalidArgumentError("the prompt is empty; give at least 1 token")
        num_tokens = len(tokens) // TOKEN_BYTES
        path = self._walk_prompt(tokens, namespace, num_public_tokens, use_cache)
        shared_ids = path.block_ids
        num_new = self._num_blocks_for(num_tokens) - len(shared_ids)
        source = self._retain_match(shared_ids, path.partial, num_new)
        self._blocks.touch(path)
        new_ids = self._blocks.allocate(num_new)
        num_cached_tokens = len(shared_ids) * self._block_size
        copies = []
        if source is not None:
            source_id, num_slots = source
            copies.append(BlockCopy(source_id, new_ids[0], num_slots))
            num_cached_tokens += num_slots
        handle = CacheHandle(
            namespace=namespace,
            tokens=tokens,
            block_size=self._block_size,
            block_table=shared_ids + new_ids,
            num_cached_tokens=num_cached_tokens,
            num_public_tokens=num_public_tokens,
            copies=copies,
            use_cache=use_cache,
        )
        self._live_handles.add(handle)
        return handle

    def extend(self, handle: CacheHandle, token_ids: TokenIds) -> list[BlockCopy]:
        """Make room for the sequence's next tokens.

        When their first slot lies in a block that others refer to as well, the handle gets a copy
        of it instead; the order is returned, and pending in `handle.copies`.

        Raises InvalidArgumentError, or OutOfBlocksError if they find no room; nothing has changed
        then. O(tokens + evicted * log leaves).
        """
        self._require_live(handle)
        tokens = pack_tokens(token_ids)
        num_tail_slots = handle.num_tokens % self._block_size
        opens_block = num_tail_slots == 0  # the next token starts a block
        needs_copy = (
            bool(tokens) and not opens_block and self._pool.num_references(handle.block_table[-1]) > 1
        )
        num_tokens = handle.num_tokens + len(tokens) // TOKEN_BYTES
        num_new = self._num_blocks_for(num_tokens) - len(handle.block_table) + needs_copy
        self._blocks.require_available(num_new)
        new_ids = self._blocks.allocate(num_new)
        copies = []
        if needs_copy:
            # The table's reference becomes the one that keeps the source until the copy is made.
            copies.append(BlockCopy(handle.block_table.pop(), new_ids[0], num_tail_slots))
        handle.copies += copies
        handle.block_table += new_ids
        handle.tokens += tokens
        return copies

    def complete_copies(self, handle: CacheHandle) -> None:
        """The caller has executed `handle.copies`: their sources are kept no longer. O(log leaves)."""
        self._require_live(handle)
        self._num_copied += len(handle.copies)
        self._blocks.release([copy.source for copy in handle.copies])
        handle.copies.clear()

    def fork(self, handle: CacheHandle) -> CacheHandle:
        """A second claim on the same blocks, for a sequence that goes on differently.

        Requires: both extend before they write again, which copies a tail they share.
        Raises PendingCopiesError when copies are pending. O(blocks).
        """
        self._require_live(handle)
        if handle.copies:
            raise PendingCopiesError(
                f"{len(handle.copies)} copies are pending; execute and complete them before fork"
            )
        self._blocks.retain(handle.block_table)
        forked = CacheHandle(
            namespace=handle.namespace,
            tokens=handle.tokens,
            block_size=self._block_size,
            block_table=list(handle.block_table),
            num_cached_tokens=handle.num_cached_tokens,
            num_public_tokens=handle.num_public_tokens,
            copies=[],
            use_cache=handle.use_cache,
        )
        self._live_handles.add(forked)
        return forked

    def publish(self, handle: CacheHandle, num_written_tokens: int, *, include_tail: bool = False) -> None:
        """Let others share the first `num_written_tokens`, whose rows the caller has written.

        Whole blocks go into the tree, and with `include_tail` also the partly filled one behind
        them. Blocks that the tree already has are adopted: the table switches to the tree's, so
        that equal prompts computed side by side end up stored once. A handle acquired without
        `use_cache` publishes nothing.

        Requires: with `include_tail`, the room behind the written rows of that block is not
        written any more; further tokens come by `extend`, which copies it.
        Raises InvalidArgumentError, or PendingCopiesError when a pending copy would overwrite
        such rows. O(edges + blocks + log nodes).
        """
        self._require_live(handle)
        if not 0 <= num_written_tokens <= handle.num_tokens:
            raise InvalidArgumentError(
                f"num_written_tokens is {num_written_tokens}; the handle has room for {handle.num_tokens}"
            )
        for copy in handle.copies:
            if num_written_tokens > handle.block_table.index(copy.target) * self._block_size:
                raise PendingCopiesError(
                    f"the copy to block {copy.target} is pending; execute and complete it before "
                    f"publishing {num_written_tokens} tokens"
                )
        num_chunks, num_tail_tokens = divmod(num_written_tokens, self._block_size)
        if not include_tail:
            num_written_tokens -= num_tail_tokens
        num_written_blocks = self._num_blocks_for(num_written_tokens)
        if not handle.use_cache or num_written_blocks == 0:
            return
        if self._pool.is_cached(handle.block_table[num_written_blocks - 1]):
            return  # then all blocks before it are cached too
        tokens = bytes(handle.tokens[: num_written_tokens * TOKEN_BYTES])
        path = self._tree.walk(tokens, handle.namespace, num_written_tokens, handle.num_public_chunks)
        if self._adopt(handle, path.block_ids):
            self._insert_behind(path, handle, tokens, num_chunks)

    def release(self, handle: CacheHandle) -> None:
        """Give everything back. What is in the tree stays there as long as there is room.

        Pending copies are dropped: requires that none of them is being executed.
        Raises HandleReleasedError the second time. O(blocks + log leaves).
        """
        self._require_live(handle)
        self._live_handles.remove(handle)
        self._blocks.release(handle.block_table)
        self._blocks.release([copy.source for copy in handle.copies])
        handle.block_table = []
        handle.copies = []
        handle.is_released = True

    def evict(self, num_blocks: int) -> int:
        """Evict up to `num_blocks` idle blocks, and return how many there were.

        Each is the last block of the leaf that was used least recently. Raises InvalidArgumentError
        when `num_blocks` is negative. O(num_blocks * log leaves).
        """
        if num_blocks < 0:
            raise InvalidArgumentError(f"num_blocks to evict is {num_blocks}; give 0 or more")
        return self._blocks.evict(num_blocks)

    def stats(self) -> CacheStats:
        """Counts as they are now. O(live handles)."""
        num_free, num_idle = self._pool.num_free, self._pool.num_idle
        return CacheStats(
            num_blocks=self.num_blocks,
            num_free=num_free,
            num_idle=num_idle,
            num_live=self.num_blocks - num_free - num_idle,
            num_live_unshared=sum(len(handle.block_table) for handle in self._live_handles),
            num_evicted=self._blocks.num_evicted,
            num_copied=self._num_copied,
            num_nodes=self._tree.num_nodes,
        )

    def dump(self, max_depth: int = 0) -> list[NodeDump]:
        """The tree, parents first, down to `max_depth` nodes from the root (0: all of it).

        Raises InvalidArgumentError when `max_depth` is negative. O(tokens and blocks of those nodes).
        """
        if max_depth < 0:
            raise InvalidArgumentError(f"max_depth is {max_depth}; give 0 for all, or more")
        return [dump_node(node, domain, self._pool) for domain, node in self._tree.nodes(max_depth)]

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests. O(everything)."""
        self._blocks.check()
        node_of_block = {block_id: node for _, node in self._tree.nodes() for block_id in node.block_ids}
        counts = Counter(node_of_block.keys())
        for handle in self._live_handles:
            handle.check()
            counts.update(handle.block_table)
            counts.update(copy.source for copy in handle.copies)
            cached_ids = [block_id for block_id in handle.block_table if block_id in node_of_block]
            if cached_ids:
                self._check_path(handle, cached_ids, node_of_block[cached_ids[-1]])
        all_ids = list(map(BlockId, range(self.num_blocks)))
        assert [self._pool.num_references(block_id) for block_id in all_ids] == [counts[i] for i in all_ids]
        stats = self.stats()
        assert stats.num_live == sum(counts[block_id] > self._pool.is_cached(block_id) for block_id in counts)

    def _check_path(self, handle: CacheHandle, cached_ids: list[BlockId], end: RadixNode) -> None:
        """Walk up from the node with a table's deepest cached block, and compare ids, tokens and owner."""
        path = end.lineage()
        num_cached = len(cached_ids)
        assert cached_ids == handle.block_table[:num_cached]
        assert cached_ids == [block_id for node in path for block_id in node.block_ids][:num_cached]
        path_tokens = b"".join(node.edge for node in path)[: num_cached * self._chunk_bytes]
        assert handle.tokens.startswith(path_tokens)
        root = path[0].parent
        assert root is not None
        assert root.scope == handle.namespace.domain
        assert end.scope in (PUBLIC_SCOPE, handle.namespace.scope)

    def _require_live(self, handle: CacheHandle) -> None:
        if handle in self._live_handles:
            return
        if handle.is_released:
            raise HandleReleasedError("the handle has been released already; acquire a new one")
        raise ForeignHandleError("the handle belongs to another cache; use the one that acquired it")

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _walk_prompt(
        self, tokens: bytes, namespace: Namespace, num_public_tokens: int, use_cache: bool = True
    ) -> Path:
        """The longest path for a prompt, of which at least one token must be left to compute."""
        num_tokens = len(tokens) // TOKEN_BYTES
        if not 0 <= num_public_tokens <= num_tokens:
            raise InvalidArgumentError(
                f"num_public_tokens is {num_public_tokens}; give 0 to {num_tokens}, the prompt's length"
            )
        num_readable_tokens = num_tokens - 1 if use_cache and tokens else 0
        return self._tree.walk(tokens, namespace, num_readable_tokens, num_public_tokens // self._block_size)

    def _retain_match(
        self, shared_ids: list[BlockId], partial: tuple[BlockId, int] | None, num_new: int
    ) -> tuple[BlockId, int] | None:
        """Retain a prompt's match before anything is allocated, so that it cannot be evicted for it.

        Returns the partial block that is retained as well, if any. All or nothing.
        """
        self._blocks.retain(shared_ids)
        if partial is not None:
            self._blocks.retain(partial[:1])
            if num_new > self._blocks.num_available:  # its own source may be the block that is needed
                self._blocks.release(partial[:1])
                partial = None
        try:
            self._blocks.require_available(num_new)
        except OutOfBlocksError:
            self._blocks.release(shared_ids)
            raise
        return partial

    def _adopt(self, handle: CacheHandle, tree_ids: list[BlockId]) -> bool:
        """Switch the beginning of the table to the tree's blocks of the same tokens.

        False when it cannot be done for now: a fork that shares the block behind them would be
        left on another path than that block.
        """
        table = handle.block_table
        own_ids = table[: len(tree_ids)]
        if own_ids == tree_ids:
            return True
        next_ids = table[len(tree_ids) : len(tree_ids) + 1]
        if any(self._pool.num_references(block_id) > 1 for block_id in next_ids):
            return False
        self._blocks.retain(tree_ids)
        table[: len(tree_ids)] = tree_ids
        self._blocks.release(own_ids)
        return True

    def _insert_behind(self, path: Path, handle: CacheHandle, tokens: bytes, num_chunks: int) -> None:
        """Put into the tree what `tokens`, all of them written, have behind `path`."""
        node = self._blocks.touch(path)
        if path.num_tokens * TOKEN_BYTES == len(tokens):
            return
        num_public = handle.num_public_chunks
        first_private = min(max(path.num_chunks, num_public), num_chunks)
        own_scope = handle.namespace.scope
        for scope, start, end in (
            (PUBLIC_SCOPE, path.num_chunks, first_private),
            (own_scope, first_private, num_chunks),
            (PUBLIC_SCOPE if num_chunks < num_public else own_scope, num_chunks, num_chunks + 1),
        ):
            edge = tokens[start * self._chunk_bytes : end * self._chunk_bytes]
            if edge:
                inserted = self._blocks.insert(node, scope, edge, handle.block_table[start:end])
                if inserted is None:
                    return  # its place is taken, so what is left stays out of the tree
                node = inserted
