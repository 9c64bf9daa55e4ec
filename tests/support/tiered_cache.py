"""A cache with tiers beside a naive model of what they keep, and simulated rows everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from support.cache_audit import read_tree
from support.prefix_oracle import PUBLIC, Prefix
from support.simulated_store import Row, SimulatedStore

from prefixcache import (
    POOL,
    BlockId,
    CacheHandle,
    Namespace,
    NumWorthRestoring,
    OutOfBlocksError,
    Place,
    PrefixCache,
    TierMove,
)


class TieredCache:
    """Does what a worker would. Moves are executed when `settle` is called, however late that is.

    The model learns what was evicted from the tree alone, and what the tiers keep from the moves alone.
    A freed block loses its rows as soon as the moves ordered before have been executed.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        tiers: Sequence[int],
        num_worth_restoring: NumWorthRestoring = len,
        may_miss: bool = False,
    ) -> None:
        """`may_miss` when keys collide: then less may be kept and found than could be."""
        self.may_miss = may_miss
        self.block_size = block_size
        self.sizes = list(tiers)
        self.num_worth_restoring = num_worth_restoring
        self.cache = PrefixCache(
            num_blocks=num_blocks,
            block_size=block_size,
            policy="lru",
            tiers=[(str(size), size) for size in tiers],
            num_worth_restoring=num_worth_restoring,
            on_free=self._note_free,
        )
        self.store = SimulatedStore(block_size)
        self.kept: dict[Place, Prefix] = {}
        """What each tier keeps."""
        self.num_written: dict[CacheHandle, int] = {}
        self._rows: dict[Place, list[Row | None]] = {}
        self._num_seen = 0
        self._freed: list[tuple[int, list[BlockId]]] = []

    def kept_in(self, tier: int) -> set[Prefix]:
        return {prefix for place, prefix in self.kept.items() if place.tier == tier}

    def acquire(
        self,
        prompt: list[int],
        namespace: Namespace,
        *,
        num_public: int = 0,
        max_cached: int | None = None,
    ) -> CacheHandle | None:
        """None when there is no room. Fails unless exactly what the model expects is restored."""
        num_readable = len(prompt) - 1 if max_cached is None else min(len(prompt) - 1, max_cached)
        match = self.cache.match(prompt[: num_readable + 1], namespace, num_public_tokens=num_public)
        num_shared = len(match.block_ids)
        expected = self._restorable(prompt, namespace, num_public, num_readable, match.block_ids)
        num_restored = min((num_shared + len(expected)) * self.block_size, num_readable)
        num_restored -= num_shared * self.block_size
        if num_restored <= match.num_tokens - num_shared * self.block_size:
            num_restored, expected = 0, []
        before = self._before()
        try:
            handle = self.cache.acquire(
                prompt, namespace, num_public_tokens=num_public, max_cached_tokens=max_cached
            )
        except OutOfBlocksError:
            self._after(before)
            return None
        assert handle.block_table[:num_shared] == match.block_ids
        if self.may_miss:
            num_restored = handle.num_restored_tokens
        assert handle.num_restored_tokens == num_restored
        if num_restored:
            assert handle.num_cached_tokens == num_shared * self.block_size + num_restored
        num_whole, num_partial = divmod(num_restored, self.block_size)
        self._after(before, num_staying=int(num_partial > 0))
        if not self.may_miss:
            assert read_tree(self.cache).keys() >= set(expected[:num_whole])
            assert not set(expected[:num_whole]) & set(self.kept.values())
        self.num_written[handle] = handle.num_cached_tokens
        return handle

    def settle(self) -> None:
        """Execute the moves, and then the copies of every handle, as a step does."""
        moves, done = self.cache.take_moves(), 0
        for num_moves, block_ids in self._freed:
            self._execute(moves[done:num_moves])
            self.store.poison(block_ids)
            done = num_moves
        self._execute(moves[done:])
        self._freed.clear()
        self._num_seen = 0
        for handle in self.num_written:
            self.store.execute(handle.copies)
            self.cache.complete_copies(handle)

    def finish(self, handle: CacheHandle, output: Sequence[int] = ()) -> None:
        """Settle, compute what is missing, publish and release."""
        self.settle()
        before = self._before()
        with suppress(OutOfBlocksError):
            self.cache.extend(handle, output)
        self._after(before)
        self.settle()
        domain, tokens = handle.namespace.domain, handle.token_ids
        for position in range(self.num_written[handle], len(tokens)):
            self.store.write(handle.block_table, domain, tokens, position)
        before = self._before()
        self.cache.publish(handle, len(tokens), include_tail=True)
        self._after(before)
        self.release(handle)

    def release(self, handle: CacheHandle) -> None:
        """Whatever is still to come to its blocks."""
        del self.num_written[handle]
        before = self._before()
        self.cache.release(handle)
        self._after(before)

    def evict(self, num_blocks: int) -> None:
        before = self._before()
        self.cache.evict(num_blocks)
        self._after(before)

    def reset(self) -> None:
        self.cache.reset()
        self.kept.clear()

    def check(self) -> None:
        """Invariants; and once all is settled, every row that anybody may read."""
        self.cache.check()
        if not self.may_miss:
            num_kept = [len(self.kept_in(tier)) for tier in range(1, len(self.sizes) + 1)]
            assert [stats.num_used for stats in self.cache.stats().tiers] == num_kept
        if self.cache._tiers.num_pending_moves:
            return
        for prefix, found in read_tree(self.cache).items():
            start = (len(prefix.tokens) - 1) // self.block_size * self.block_size
            table = [found.block_id] * (start // self.block_size + 1)
            self.store.expect(table, prefix.domain, prefix.tokens, range(start, len(prefix.tokens)))
        for handle, num_written in self.num_written.items():
            if not handle.copies:
                domain, tokens = handle.namespace.domain, handle.token_ids
                self.store.expect(handle.block_table, domain, tokens, range(num_written))
        for place, prefix in self.kept.items():
            ends = range(len(prefix.tokens) - self.block_size + 1, len(prefix.tokens) + 1)
            assert self._rows[place] == [(prefix.domain, prefix.tokens[:end]) for end in ends]

    def _restorable(
        self,
        prompt: list[int],
        namespace: Namespace,
        num_public: int,
        num_readable: int,
        shared_ids: list[BlockId],
    ) -> list[Prefix]:
        """The longest run behind the match, of public blocks and then the namespace's own."""
        size, start = self.block_size, len(shared_ids)
        tier_of = {prefix: place.tier for place, prefix in self.kept.items()}

        def run(scope: bytes, first: int, num_above: int) -> list[Prefix]:
            found: list[Prefix] = []
            for index in range(first, min(-(-num_readable // size), len(prompt) // size)):
                num_above = index if scope == PUBLIC else num_above
                prefix = Prefix(namespace.domain, scope, num_above, tuple(prompt[: (index + 1) * size]))
                if prefix not in tier_of:
                    break
                found.append(prefix)
            return found

        path = {found.block_id: prefix for prefix, found in read_tree(self.cache).items()}
        if shared_ids and path[shared_ids[-1]].scope != PUBLIC:
            longest = run(namespace.scope, start, path[shared_ids[-1]].num_public_blocks)
        else:
            longest = public = run(PUBLIC, start, 0)
            for end in range(start + len(public), max(start, num_public // size) - 1, -1):
                candidate = public[: end - start] + run(namespace.scope, end, end)
                longest = max(longest, candidate, key=len)
        return longest[: self.num_worth_restoring([tier_of[prefix] for prefix in longest])]

    def _before(self) -> dict[Prefix, BlockId]:
        return {prefix: found.block_id for prefix, found in read_tree(self.cache).items()}

    def _after(self, before: dict[Prefix, BlockId], num_staying: int = 0) -> None:
        """Learn from the moves ordered since; what has left the tree is kept unless all is full.

        The last `num_staying` moves leave their sources where they are.
        """
        prefix_of = {block_id: prefix for prefix, block_id in before.items()}
        moves, last, num_reserved = self.cache._tiers._moves, len(self.sizes), 0
        for number, (source, target) in enumerate(moves[self._num_seen :], start=self._num_seen):
            num_reserved += source.tier == last
            prefix = prefix_of[BlockId(source.number)] if source.tier == POOL else self.kept[source]
            if source.tier != POOL and number < len(moves) - num_staying:
                del self.kept[source]
            if target.tier != POOL:
                self.kept[target] = prefix
        self._num_seen = len(moves)
        gone = before.keys() - read_tree(self.cache).keys()
        lost = {p for p in gone if len(p.tokens) % self.block_size == 0} - set(self.kept.values())
        assert not lost or self.may_miss or len(self.kept_in(last)) + num_reserved >= self.sizes[-1]

    def _note_free(self, block_ids: list[BlockId]) -> None:
        num_moves = self.cache._tiers.num_pending_moves
        if num_moves:
            self._freed.append((num_moves, list(block_ids)))
        else:
            self.store.poison(block_ids)

    def _execute(self, moves: Sequence[TierMove]) -> None:
        for source, target in moves:
            if source.tier == POOL:
                rows = [self.store.row([BlockId(source.number)], slot) for slot in range(self.block_size)]
            else:
                rows = self._rows[source]
            if target.tier == POOL:
                self.store.put(BlockId(target.number), rows)
            else:
                self._rows[target] = rows
