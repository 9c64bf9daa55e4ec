"""The claims of all sequences that run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from math import inf

from prefixcache.block_pool import BlockId, BlockPool
from prefixcache.cached_blocks import CachedBlocks
from prefixcache.errors import (
    ForeignHandleError,
    HandleReleasedError,
    InvalidArgumentError,
    NotPublisherError,
    OutOfBlocksError,
    PendingCopiesError,
    QuotaExceededError,
)
from prefixcache.handle import HOLE, BlockCopy, CacheHandle
from prefixcache.history import Loss
from prefixcache.namespace import PUBLIC_SCOPE, Namespace
from prefixcache.pins import PinTable
from prefixcache.quota import TenantAccount, TenantLedger
from prefixcache.radix_node import Visit
from prefixcache.radix_tree import Path, RadixTree
from prefixcache.restoring import NOTHING, Restorer
from prefixcache.sightings import TenantSightings
from prefixcache.token_chunks import (
    TOKEN_BYTES,
    TokenIds,
    num_declared_chunks,
    num_readable_tokens,
    pack_tokens,
)


class LiveHandles:
    """Makes, changes and ends handles. `PrefixCache` has the contracts of its methods.

    Invariant, proved by `audit.check_references`: see `PrefixCache`.
    """

    __slots__ = (
        "_block_size",
        "_blocks",
        "_chunk_bytes",
        "_clock",
        "_epoch",
        "_handles",
        "_ledger",
        "_num_copied",
        "_pins",
        "_pool",
        "_restorer",
        "_sightings",
        "_tree",
    )

    def __init__(
        self,
        pool: BlockPool,
        tree: RadixTree,
        blocks: CachedBlocks,
        ledger: TenantLedger,
        pins: PinTable,
        sightings: TenantSightings | None,
        restorer: Restorer,
        clock: Callable[[], float],
    ) -> None:
        self._block_size = tree.block_size
        self._chunk_bytes = tree.chunk_bytes
        self._pool = pool
        self._tree = tree
        self._blocks = blocks
        self._ledger = ledger
        self._pins = pins
        self._sightings = sightings
        self._restorer = restorer
        self._clock = clock
        self._handles: set[CacheHandle] = set()
        self._epoch = 0
        self._num_copied = 0

    def __len__(self) -> int:
        return len(self._handles)

    def __iter__(self) -> Iterator[CacheHandle]:
        return iter(self._handles)

    @property
    def epoch(self) -> int:
        """Which tree new handles find their cached blocks in."""
        return self._epoch

    @property
    def num_copied(self) -> int:
        """Blocks copied so far."""
        return self._num_copied

    @property
    def num_vacant_slots(self) -> int:
        """Slots behind the last token of every table, those of a block that forks share once. O(handles)."""
        size = self._block_size
        return sum({handle.block_table[-1]: -handle.num_tokens % size for handle in self._handles}.values())

    def next_epoch(self) -> None:
        """The tree is another: handles made before publish no more."""
        self._epoch += 1

    def walk(
        self,
        tokens: bytes,
        namespace: Namespace,
        num_public_tokens: int,
        max_cached_tokens: int | None = None,
    ) -> Path:
        """The longest path for a prompt, of which at least one token must be left to compute."""
        num_tokens = len(tokens) // TOKEN_BYTES
        num_public_chunks = num_declared_chunks(num_public_tokens, num_tokens, self._block_size)
        num_readable = num_readable_tokens(num_tokens, max_cached_tokens)
        return self._tree.walk(tokens, namespace, num_readable, num_public_chunks)

    def acquire(
        self,
        token_ids: TokenIds,
        namespace: Namespace,
        *,
        num_public_tokens: int,
        use_cache: bool,
        max_cached_tokens: int | None,
        priority: int,
        priority_seconds: float,
        is_resumed: bool,
    ) -> CacheHandle:
        tokens = pack_tokens(token_ids)
        if not tokens:
            raise InvalidArgumentError("the prompt is empty; give at least 1 token")
        if num_public_tokens and not namespace.is_publisher:
            raise NotPublisherError(
                f"{num_public_tokens} tokens are declared public, but the namespace of tenant "
                f"{namespace.tenant!r} is no publisher's; declare 0, or use a publisher's credential"
            )
        if max_cached_tokens is not None and max_cached_tokens < 0:
            raise InvalidArgumentError(f"max_cached_tokens is {max_cached_tokens}; give at least 0, or None")
        if not isinstance(priority, int):
            raise InvalidArgumentError(f"priority is {priority!r}; give an integer")
        if not priority_seconds > 0:
            raise InvalidArgumentError(f"priority_seconds is {priority_seconds}; give more than 0")
        num_tokens = len(tokens) // TOKEN_BYTES
        limit = max_cached_tokens if use_cache else 0
        path = self.walk(tokens, namespace, num_public_tokens, limit)
        restorable = NOTHING
        if self._restorer.has_blocks:
            num_readable = num_readable_tokens(num_tokens, limit)
            restorable = self._restorer.find(path, tokens, namespace, num_readable, num_public_tokens)
            if restorable.blocks:
                path = path._replace(partial=None)
        self._pins.end_due()
        if self._ledger.is_crowded:
            self._ledger.forget_idle({holder.visit.account for holder in (*self._handles, *self._pins)})
        account = self._ledger.find_account(namespace.tenant)
        shared_ids = path.block_ids
        num_new = self._num_blocks_for(num_tokens) - len(shared_ids)
        source = self._retain_match(path, shared_ids, num_new, account)
        self._ledger.open(account)
        turn = self._blocks.turn_of(path, tokens, namespace)
        priority_ends = inf if priority_seconds == inf else self._clock() + priority_seconds
        tick = self._blocks.next_tick()
        visit = Visit(tick, account, turn.of_request, turn.of_path, priority, priority_ends)
        end = self._blocks.touch(path, visit, is_new_use=True)
        self._pins.hit(end, path, tokens, is_new_use=not is_resumed)
        if restorable.blocks:
            self._restorer.take(restorable)  # what is evicted now must not take their places
        new_ids = self._blocks.allocate(num_new, account)
        num_cached_tokens = len(shared_ids) * self._block_size + restorable.num_tokens
        if restorable.blocks:
            restored_ids = new_ids[: len(restorable.blocks)]
            self._restorer.restore(end, path.num_chunks, restorable, restored_ids, tokens, visit)
        copies = []
        if source is not None:
            source_id, num_slots = source
            copies.append(BlockCopy(source_id, new_ids[0], num_slots))
            num_cached_tokens += num_slots
        uses_cache = use_cache and max_cached_tokens is None
        account.count_request(num_tokens, num_cached_tokens, uses_cache=uses_cache, is_resumed=is_resumed)
        if not use_cache:
            self._note_bypass(tokens, namespace, num_public_tokens, account)
        handle = CacheHandle(
            namespace=namespace,
            tokens=tokens,
            block_size=self._block_size,
            block_table=shared_ids + new_ids,
            num_cached_tokens=num_cached_tokens,
            num_public_tokens=num_public_tokens,
            copies=copies,
            use_cache=use_cache,
            visit=visit,
            epoch=self._epoch,
        )
        handle.num_used_blocks = path.num_chunks
        handle.num_restored_tokens = restorable.num_tokens
        self._handles.add(handle)
        return handle

    def extend(self, handle: CacheHandle, token_ids: TokenIds) -> list[BlockCopy]:
        self._require_live(handle)
        tokens = pack_tokens(token_ids)
        num_tail_slots = handle.num_tokens % self._block_size
        opens_block = num_tail_slots == 0  # the next token starts a block
        needs_copy = (
            bool(tokens) and not opens_block and self._pool.num_references(handle.block_table[-1]) > 1
        )
        num_tokens = handle.num_tokens + len(tokens) // TOKEN_BYTES
        num_new = self._num_blocks_for(num_tokens) - len(handle.block_table) + needs_copy
        copies = []
        if num_new:
            self._pins.end_due()
            self._blocks.require_available(num_new, handle.visit.account)
            new_ids = self._blocks.allocate(num_new, handle.visit.account)
            if needs_copy:
                # The table's reference becomes the one that keeps the source until the copy is made.
                copies.append(BlockCopy(handle.block_table.pop(), new_ids[0], num_tail_slots))
            handle.copies += copies
            handle.block_table += new_ids
        handle.tokens += tokens
        return copies

    def complete_copies(self, handle: CacheHandle) -> None:
        self._require_live(handle)
        self._num_copied += len(handle.copies)
        self._blocks.release([copy.source for copy in handle.copies], handle.visit.account)
        handle.copies.clear()

    def fork(self, handle: CacheHandle) -> CacheHandle:
        self._require_live(handle)
        if handle.copies:
            raise PendingCopiesError(
                f"{len(handle.copies)} copies are pending; execute and complete them before fork"
            )
        self._blocks.retain(handle.held_blocks)
        forked = handle.forked()
        self._handles.add(forked)
        return forked

    def give_back(self, handle: CacheHandle, start_token: int, end_token: int) -> int:
        self._require_live(handle)
        if not 0 <= start_token <= end_token < handle.num_tokens:
            raise InvalidArgumentError(
                f"tokens [{start_token}, {end_token}) are to be given back of a handle with "
                f"{handle.num_tokens}; give a range that ends before its last token"
            )
        if handle.copies:
            raise PendingCopiesError(
                f"{len(handle.copies)} copies are pending; execute and complete them before giving back"
            )
        table = handle.block_table
        first, end = self._num_blocks_for(start_token), end_token // self._block_size
        if table[end] != HOLE and self._has_other_holders(table[end]):
            return 0  # who holds a block holds all before it, and so does this handle
        places = [i for i in range(first, end) if table[i] != HOLE]
        self._blocks.release([table[i] for i in places], handle.visit.account)
        for i in places:
            table[i] = HOLE
        handle.has_holes = handle.has_holes or bool(places)
        return len(places)

    def publish(self, handle: CacheHandle, num_written_tokens: int, *, include_tail: bool) -> int:
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
        if handle.has_holes:  # what is behind a hole cannot be on a path
            num_written_tokens = min(num_written_tokens, handle.block_table.index(HOLE) * self._block_size)
        if not include_tail:
            num_written_tokens -= num_written_tokens % self._block_size
        num_written_blocks = self._num_blocks_for(num_written_tokens)
        if num_written_blocks == 0 or not handle.use_cache or handle.epoch != self._epoch:
            return 0
        if self._pool.is_cached(handle.block_table[num_written_blocks - 1]):
            return 0  # then all blocks before it are cached too
        tokens = bytes(handle.tokens[: num_written_tokens * TOKEN_BYTES])
        path = self._tree.walk(tokens, handle.namespace, num_written_tokens, handle.num_public_chunks)
        return self._insert_behind(path, handle, tokens) if self._adopt(handle, path.block_ids) else 0

    def release(self, handle: CacheHandle) -> None:
        self._require_live(handle)
        self._handles.remove(handle)
        account = handle.visit.account
        self._blocks.release(handle.held_blocks, account)
        if handle.copies:
            self._blocks.release([copy.source for copy in handle.copies], account)
        handle.block_table = []
        handle.copies = []
        handle.is_released = True

    def _require_live(self, handle: CacheHandle) -> None:
        if handle in self._handles:
            return
        if handle.is_released:
            raise HandleReleasedError("the handle has been released already; acquire a new one")
        raise ForeignHandleError("the handle belongs to another cache; use the one that acquired it")

    def _has_other_holders(self, block_id: BlockId) -> bool:
        """Whether the tree or another handle refers to a block of a handle."""
        return self._pool.num_references(block_id) > 1 + self._pool.is_stale(block_id)

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _retain_match(
        self, path: Path, shared_ids: list[BlockId], num_new: int, account: TenantAccount
    ) -> tuple[BlockId, int] | None:
        """Retain a prompt's match before anything is allocated, so that it cannot be evicted for it.

        Returns the partial block that is retained as well, if any. All or nothing.
        """
        self._blocks.retain_cached(shared_ids)
        if path.partial is not None:
            source_ids = path.partial[:1]
            self._blocks.retain_cached(source_ids)
            try:
                self._blocks.require_available(num_new, account)
            except (OutOfBlocksError, QuotaExceededError):
                self._blocks.release(source_ids, account)  # it may be the very block that is needed
            else:
                return path.partial
        try:
            self._blocks.require_available(num_new, account)
        except (OutOfBlocksError, QuotaExceededError):
            self._blocks.release(shared_ids, account)
            raise
        return None

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
        if any(block_id != HOLE and self._pool.num_references(block_id) > 1 for block_id in next_ids):
            return False
        self._blocks.retain_cached(tree_ids)
        table[: len(tree_ids)] = tree_ids
        self._blocks.release(own_ids, handle.visit.account)
        return True

    def _insert_behind(self, path: Path, handle: CacheHandle, tokens: bytes) -> int:
        """Put into the tree what `tokens`, all of them written, have behind `path`; how many that are."""
        node = self._blocks.touch(
            path, handle.visit, is_new_use=False, num_used_blocks=handle.num_used_blocks
        )
        handle.num_used_blocks = max(handle.num_used_blocks, path.num_chunks)
        if path.num_tokens * TOKEN_BYTES == len(tokens):
            return 0  # what is behind the last whole chunk begins a block that is there
        num_tokens = len(tokens) // TOKEN_BYTES
        num_chunks, rest = divmod(num_tokens, self._block_size)
        num_public = handle.num_public_chunks
        if self._sightings is not None and not handle.namespace.salt:
            num_public = max(num_public, self._sightings.num_visible_chunks(handle.namespace, tokens))
        if not node.is_root and not node.is_public:
            num_public = 0
        cuts = {path.num_chunks, num_chunks, num_chunks + (rest > 0)}
        cuts |= {cut for cut in (num_public, handle.num_prompt_chunks) if path.num_chunks < cut < num_chunks}
        for start, end in pairwise(sorted(cuts)):
            inserted = self._blocks.insert(
                node,
                PUBLIC_SCOPE if start < num_public else handle.namespace.scope,
                tokens[start * self._chunk_bytes : end * self._chunk_bytes],
                handle.block_table[start:end],
                handle.visit,
                is_output=min(end * self._block_size, num_tokens) > handle.num_prompt_tokens,
            )
            if inserted is None:  # its place is taken, so what is left stays out of the tree
                num_tokens = start * self._block_size
                break
            node = inserted
        # What came back from a tier was the cache's all the time.
        return max(num_tokens - max(path.num_tokens, handle.num_cached_tokens), 0)

    def _note_bypass(
        self, tokens: bytes, namespace: Namespace, num_public_tokens: int, account: TenantAccount
    ) -> None:
        """Remember under the key of its first missing block that this prompt was not to be cached."""
        num_tokens = len(tokens) // TOKEN_BYTES
        num_public_chunks = num_declared_chunks(num_public_tokens, num_tokens, self._block_size)
        path = self._tree.walk(tokens, namespace, num_tokens, num_public_chunks)
        start = path.num_chunks * self._chunk_bytes
        chunk = tokens[start : start + self._chunk_bytes]
        if len(chunk) == self._chunk_bytes:
            key = self._tree.key_behind(path.end, path.num_end_blocks, namespace.scope, chunk)
            self._blocks.note_loss(key, Loss.CACHE_OFF, account)
