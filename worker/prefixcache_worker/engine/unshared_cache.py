"""The schemes before prefix sharing: every sequence has blocks of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from prefixcache import (
    BlockCopy,
    BlockId,
    CacheStats,
    HandleReleasedError,
    InvalidArgumentError,
    Match,
    Namespace,
    NodeDump,
    OutOfBlocksError,
    PendingCopiesError,
    TokenIds,
    TreeView,
    pack_tokens,
)
from prefixcache.block_pool import BlockPool, OnFree
from prefixcache.token_chunks import TOKEN_BYTES


@dataclass(slots=True, eq=False)
class OwnBlocks:
    """One sequence's claim on blocks that no other sequence reads."""

    extents: list[BlockId]
    """Numbers of the extents it holds, in the order of its tokens."""
    block_table: list[BlockId]
    num_tokens: int
    copies: list[BlockCopy] = field(default_factory=list)
    source_extents: list[BlockId] = field(default_factory=list)
    """What the pending copies read, kept until they are complete."""
    num_cached_tokens: int = 0
    """Always 0: nothing is found, everything is computed."""
    num_restored_tokens: int = 0
    """Always 0."""
    extent_blocks: int = 1

    @property
    def held_blocks(self) -> list[BlockId]:
        """All blocks of its extents, used or not. O(blocks)."""
        return blocks_of(self.extents, self.extent_blocks)


def blocks_of(extents: Sequence[BlockId], size: int) -> list[BlockId]:
    """The blocks of extents of `size` blocks each. O(blocks)."""
    return [BlockId(block) for extent in extents for block in range(extent * size, (extent + 1) * size)]


class UnsharedCache:
    """Gives each sequence whole *extents*: `extent_blocks` blocks that lie one after the other.

    - Extents of one block are **paging**: blocks on demand, at most the last one partly used
      (Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with
      PagedAttention", without its sharing).
    - Extents as long as the longest sequence are **contiguous preallocation**: each sequence takes
      its whole room when it starts, in one piece, and keeps it unused until it needs it.

    Nothing is shared, not even between the choices of one request: `fork` orders a copy of all
    rows. Stands where `PrefixCache` does and has the contracts of its methods. Holds no tensors.

    Invariants, proved by `check`:
    - no extent is in two handles; its count is 1 for its handle, and 1 for each whose copies read it;
    - a table is the first blocks of the handle's extents, as many as its tokens need, and only the
      last extent may have blocks that it does not need;
    - pending copies go to the first blocks of the table, from extents that are kept for them.
    """

    shares_prefixes = False

    def __init__(
        self, *, num_blocks: int, block_size: int, extent_blocks: int = 1, on_free: OnFree | None = None
    ) -> None:
        """All free. Raises InvalidArgumentError unless 1 <= extent_blocks <= num_blocks.

        The last `num_blocks % extent_blocks` blocks are no extent and stay free for ever.
        """
        if not 1 <= extent_blocks <= num_blocks:
            raise InvalidArgumentError(f"extent_blocks is {extent_blocks}; give 1 to {num_blocks}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._extent_blocks = extent_blocks
        self._handles: set[OwnBlocks] = set()
        self._num_copied = 0
        self._on_free = on_free
        # Counts extents by their numbers, as if each were one block.
        self._pool = BlockPool(num_blocks // extent_blocks, on_free=self._tell_freed)

    def num_holders(self, block_id: BlockId) -> int:
        """The handle whose extent it is in, and those that are to copy it. O(1)."""
        return self._pool.num_references(BlockId(block_id // self._extent_blocks))

    def match(self, token_ids: TokenIds, namespace: Namespace, *, num_public_tokens: int = 0) -> Match:
        """Nothing."""
        return Match([], 0, None)

    def acquire(
        self,
        token_ids: TokenIds,
        namespace: Namespace,
        *,
        num_public_tokens: int = 0,
        use_cache: bool = True,
        max_cached_tokens: int | None = None,
        priority: int = 0,
        priority_seconds: float = inf,
        is_resumed: bool = False,
    ) -> OwnBlocks:
        """Take room for a whole prompt. What the options say of sharing makes no difference.

        Raises InvalidArgumentError, or OutOfBlocksError; nothing has changed then. O(tokens).
        """
        num_tokens = len(pack_tokens(token_ids)) // TOKEN_BYTES
        if num_tokens == 0:
            raise InvalidArgumentError("the prompt is empty; give at least 1 token")
        handle = OwnBlocks([], [], 0, extent_blocks=self._extent_blocks)
        self._grow(handle, num_tokens)
        self._handles.add(handle)
        return handle

    def extend(self, handle: OwnBlocks, token_ids: TokenIds) -> list[BlockCopy]:
        """Make room for the sequence's next tokens; never needs a copy.

        Raises HandleReleasedError, InvalidArgumentError, or OutOfBlocksError; nothing has changed then.
        O(tokens).
        """
        self._require_live(handle)
        self._grow(handle, len(pack_tokens(token_ids)) // TOKEN_BYTES)
        return []

    def complete_copies(self, handle: OwnBlocks) -> None:
        """The caller has executed `handle.copies`: their sources are kept no longer. O(copies)."""
        self._require_live(handle)
        self._num_copied += len(handle.copies)
        self._drop_copies(handle)

    def fork(self, handle: OwnBlocks) -> OwnBlocks:
        """As much room again, and orders to copy every row.

        Raises HandleReleasedError, PendingCopiesError when copies of the handle itself are pending,
        or OutOfBlocksError; nothing has changed then. O(blocks).
        """
        self._require_live(handle)
        if handle.copies:
            raise PendingCopiesError(
                f"{len(handle.copies)} copies are pending; execute and complete them before fork"
            )
        fork = OwnBlocks([], [], 0, extent_blocks=self._extent_blocks)
        self._grow(fork, handle.num_tokens)
        self._pool.retain(handle.extents)
        fork.source_extents = list(handle.extents)
        pairs = zip(handle.block_table, fork.block_table, strict=True)
        fork.copies = [
            BlockCopy(source, target, min(self.block_size, handle.num_tokens - i * self.block_size))
            for i, (source, target) in enumerate(pairs)
        ]
        self._handles.add(fork)
        return fork

    def give_back(self, handle: OwnBlocks, start_token: int, end_token: int) -> int:
        """Nothing: here a sequence keeps what it has until it ends."""
        return 0

    def publish(self, handle: OwnBlocks, num_written_tokens: int, *, include_tail: bool = False) -> int:
        """Nobody shares: does nothing."""
        return 0

    def release(self, handle: OwnBlocks) -> None:
        """Give everything back, and drop pending copies.

        Raises HandleReleasedError the second time. O(blocks).
        """
        self._require_live(handle)
        self._handles.remove(handle)
        self._drop_copies(handle)
        self._pool.release(handle.extents)
        handle.extents, handle.block_table = [], []

    def stats(self) -> CacheStats:
        """Counts as they are now; a reserved block is live. O(live handles)."""
        num_live = (self._pool.num_blocks - self._pool.num_free) * self._extent_blocks
        num_reserved = sum(len(handle.extents) for handle in self._handles) * self._extent_blocks
        num_tokens = sum(handle.num_tokens for handle in self._handles)
        return CacheStats(
            num_blocks=self.num_blocks,
            num_free=self.num_blocks - num_live,
            num_idle=0,
            num_live=num_live,
            num_pinned=0,
            num_pinned_only=0,
            num_live_unshared=num_reserved,
            num_used_slots=(num_live - num_reserved) * self.block_size + num_tokens,
            num_evicted=0,
            num_copied=self._num_copied,
            num_nodes=0,
        )

    def dump(self, max_depth: int = 0) -> list[NodeDump]:
        """No tree, no nodes."""
        return []

    def view(
        self, tenant: str | None = None, *, max_depth: int = 0, max_nodes: int | None = None
    ) -> TreeView:
        """Nothing: there is no tree."""
        return TreeView([], 0)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests. O(blocks)."""
        self._pool.check()
        held = Counter(extent for handle in self._handles for extent in handle.extents)
        assert all(count == 1 for count in held.values())
        counts = held + Counter(extent for handle in self._handles for extent in handle.source_extents)
        for extent in map(BlockId, range(self._pool.num_blocks)):
            assert self._pool.num_references(extent) == counts[extent]
        for handle in self._handles:
            num_blocks = self._num_blocks_for(handle.num_tokens)
            assert handle.block_table == handle.held_blocks[:num_blocks]
            assert len(handle.extents) == -(-num_blocks // self._extent_blocks)
            targets = [copy.target for copy in handle.copies]
            assert targets == handle.block_table[: len(targets)]
            sources = set(blocks_of(handle.source_extents, self._extent_blocks))
            assert all(copy.source in sources for copy in handle.copies)
            assert all(0 < copy.num_slots <= self.block_size for copy in handle.copies)

    def _grow(self, handle: OwnBlocks, num_tokens: int) -> None:
        """Room for so many tokens more. All or nothing."""
        num_blocks = self._num_blocks_for(handle.num_tokens + num_tokens)
        num_new = -(-num_blocks // self._extent_blocks) - len(handle.extents)
        if num_new > self._pool.num_free:
            raise OutOfBlocksError(
                num_needed=num_new * self._extent_blocks,
                num_free=self._pool.num_free * self._extent_blocks,
                num_idle=0,
            )
        handle.extents += self._pool.allocate(num_new)
        handle.num_tokens += num_tokens
        for i in range(len(handle.block_table), num_blocks):
            extent, rest = divmod(i, self._extent_blocks)
            handle.block_table.append(BlockId(handle.extents[extent] * self._extent_blocks + rest))

    def _drop_copies(self, handle: OwnBlocks) -> None:
        self._pool.release(handle.source_extents)
        handle.source_extents, handle.copies = [], []

    def _require_live(self, handle: OwnBlocks) -> None:
        if handle not in self._handles:
            raise HandleReleasedError("the handle has been released already; acquire a new one")

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _tell_freed(self, extents: list[BlockId]) -> None:
        if self._on_free is not None:
            self._on_free(blocks_of(extents, self._extent_blocks))
