"""A cache beside a model of it and a simulated KV store: whatever is done, both are compared."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from math import inf

import pytest
from support.cache_audit import check_counts, check_everything, read_tree
from support.cache_model import CacheModel, Sequence, held_blocks
from support.cache_settings import CacheSettings
from support.cache_state import observed
from support.prefix_oracle import PUBLIC
from support.simulated_store import SimulatedStore

from prefixcache import (
    HOLE,
    BlockCopy,
    BlockId,
    CacheHandle,
    EventLog,
    InvalidArgumentError,
    Match,
    Namespace,
    NotCachedError,
    NotPublisherError,
    PendingCopiesError,
    Pin,
    PinExpiredError,
    PinLimitError,
    PrefixCacheError,
    TenantQuota,
)
from prefixcache.event_index import EventIndex


class ComparedCache:
    """Does what a worker would, predicts what comes of it, and fails when something else does.

    The model says which error comes, or which blocks are shared and copied and how many are
    evicted. It does not say which blocks those are; but they must have been idle, and other
    tenants must keep their floors. What an operation does to the tree is compared by itself.
    """

    def __init__(self, settings: CacheSettings) -> None:
        self.settings = settings
        self.block_size = settings.block_size
        self.seconds = 0.0
        self.oracle = settings.make_oracle()
        self.store = SimulatedStore(self.block_size)
        self.start_anew({})

    def start_anew(self, quotas: dict[str, TenantQuota]) -> None:
        """An empty cache, as in a new process."""
        num_blocks = self.settings.num_blocks
        self.store.poison(map(BlockId, range(num_blocks)))
        self.oracle.clear()
        self.oracle.forget_computed()
        self.model = CacheModel(num_blocks=num_blocks, oracle=self.oracle, quotas=dict(quotas))
        self.released: CacheHandle | None = None
        """The handle released last."""
        self._log = EventLog(4 * num_blocks + 64)
        self._index = EventIndex()
        self._due_pins: list[Pin] = []
        self.cache = self.settings.make_cache(
            quotas=quotas, events=self._log, clock=lambda: self.seconds, on_free=self.store.poison
        )

    def check_counts(self) -> None:
        """What the cache tells of itself is what counting again gives; its events can be replayed."""
        for event in self._log.since(self._index.next_sequence_number):
            self._index.apply(event)
        check_counts(self.cache, self.model)
        while self._due_pins:
            self._require_ended(self._due_pins.pop())

    def check(self) -> None:
        """That, the invariants of the cache, and every row that anybody may read."""
        self.check_counts()
        self._log.check()
        check_everything(self.cache, self.model, self.store, self._index)

    def match(self, prompt: list[int], namespace: Namespace, num_public: int = 0) -> Match:
        reachable, num_declared = prompt[:-1], num_public // self.block_size
        match = self.cache.match(prompt, namespace, num_public_tokens=num_public)
        assert match.num_tokens == self.oracle.longest_match(reachable, namespace, num_declared)
        route = self.oracle.route(reachable, namespace, num_declared)
        path = self.oracle.path(prompt, namespace, route)
        assert match.block_ids == [self.oracle.block_of[prefix] for prefix in path]
        if match.partial is None:
            assert route.num_partial_tokens == 0
        else:
            source_id, num_slots = match.partial
            assert num_slots == route.num_partial_tokens
            (source,) = (prefix for prefix, block_id in self.oracle.block_of.items() if block_id == source_id)
            assert source[:3] == (namespace.domain, route.scope, route.num_public_blocks)
            assert source.tokens[: match.num_tokens] == tuple(prompt[: match.num_tokens])
        return match

    def acquire(
        self,
        prompt: list[int],
        namespace: Namespace,
        *,
        num_public: int = 0,
        use_cache: bool = True,
        max_cached: int | None = None,
        is_resumed: bool = False,
        priority: int = 0,
        priority_seconds: float = inf,
    ) -> Sequence | None:
        """None when it is refused, as it should be. Requires: `max_cached` only with nothing public."""
        acquire = partial(
            self.cache.acquire,
            prompt,
            namespace,
            num_public_tokens=num_public,
            use_cache=use_cache,
            max_cached_tokens=max_cached,
            priority=priority,
            priority_seconds=priority_seconds,
            is_resumed=is_resumed,
        )
        if num_public and not namespace.is_publisher:
            self.refused(acquire, NotPublisherError, f"{num_public} tokens", repr(namespace.tenant))
            return None
        tenant = namespace.tenant
        match = self.match(prompt if max_cached is None else prompt[: max_cached + 1], namespace, num_public)
        readable = prompt[:-1][:max_cached] if use_cache else []
        route = self.oracle.route(readable, namespace, num_public // self.block_size)
        path = self.oracle.path(prompt, namespace, route)
        shared_ids = [self.oracle.block_of[prefix] for prefix in path]
        num_new = self.oracle.num_blocks(prompt) - len(shared_ids)
        copied = match.partial if use_cache else None
        used_ids = {*shared_ids, *([copied[0]] if copied else [])}
        error = self.model.room_error(tenant, num_new, used_ids)
        if error is not None and copied is not None:
            copied = None  # its source may be the very block that is needed
            error = self.model.room_error(tenant, num_new, shared_ids)
        if error is not None:
            self.refused(acquire, type(error), str(error))
            return None
        in_use, usable_ids = self.model.in_use(), self.model.free_ids()
        num_evicted = self.model.num_to_evict(tenant, num_new)

        handle = acquire()

        new_ids = handle.block_table[len(shared_ids) :]
        num_cached = len(shared_ids) * self.block_size + (copied[1] if copied else 0)
        assert handle.block_table == shared_ids + new_ids
        assert handle.copies == ([BlockCopy(copied[0], new_ids[0], copied[1])] if copied else [])
        assert handle.num_cached_tokens == num_cached
        self.oracle.touch(path, tenant)
        uses_cache = use_cache and max_cached is None
        self.model.count_request(
            tenant, len(prompt), num_cached, uses_cache=uses_cache, is_resumed=is_resumed
        )
        if use_cache:
            self.model.renew_pins(prompt, match, self.seconds)
        in_use |= {*shared_ids, *(copy.source for copy in handle.copies)}
        usable_ids |= self.compare_tree(num_evicted, in_use, tenant)
        assert usable_ids.issuperset(new_ids)
        sequence = Sequence(handle, prompt, num_cached, self.model.epoch)
        self.model.sequences.append(sequence)
        self._require_below_ceiling(tenant)
        return sequence

    def extend(self, sequence: Sequence, tokens: list[int]) -> None:
        handle, tenant = sequence.handle, sequence.tenant
        old_table, old_copies = list(handle.block_table), list(handle.copies)
        num_tail_slots = len(sequence.tokens) % self.block_size
        needs_copy = (
            bool(tokens) and num_tail_slots > 0 and self.model.num_references(handle.block_table[-1]) > 1
        )
        extended = sequence.tokens + tokens
        num_new = self.oracle.num_blocks(extended) - len(old_table) + needs_copy
        extend = partial(self.cache.extend, handle, tokens)
        error = self.model.room_error(tenant, num_new) if num_new else None
        if error is not None:
            self.refused(extend, type(error), str(error))
            return
        in_use, usable_ids = self.model.in_use(), self.model.free_ids()
        num_evicted = self.model.num_to_evict(tenant, num_new) if num_new else 0

        copies = extend()

        num_kept = len(old_table) - needs_copy
        new_ids = handle.block_table[num_kept:]
        assert handle.block_table[:num_kept] == old_table[:num_kept]
        assert len(new_ids) == num_new
        assert copies == ([BlockCopy(old_table[-1], new_ids[0], num_tail_slots)] if needs_copy else [])
        assert handle.copies == old_copies + copies
        usable_ids |= self.compare_tree(num_evicted, in_use, tenant)
        assert usable_ids.issuperset(new_ids)
        sequence.tokens = extended
        if num_new:
            self._require_below_ceiling(tenant)

    def execute(self, sequence: Sequence) -> None:
        """Make the pending copies."""
        handle = sequence.handle
        self.store.execute(handle.copies)
        self.model.num_copied += len(handle.copies)
        self.cache.complete_copies(handle)
        assert not handle.copies
        self.compare_tree()

    def write(self, sequence: Sequence, num_written: int) -> None:
        """Compute rows, which may be done only in blocks that nobody else refers to."""
        self.execute(sequence)
        if sequence.is_ending:
            return
        table, domain = sequence.handle.block_table, sequence.handle.namespace.domain
        for position in range(sequence.num_written, num_written):
            if position == sequence.num_written or position % self.block_size == 0:
                assert self.model.num_references(table[position // self.block_size]) == 1
            self.store.write(table, domain, sequence.tokens, position)
        sequence.num_written = num_written

    def fork(self, sequence: Sequence) -> Sequence | None:
        """Another sequence on the same blocks; None when copies are pending."""
        handle = sequence.handle
        if handle.copies:
            self.refused(partial(self.cache.fork, handle), PendingCopiesError, "1 copies are pending")
            return None
        forked = self.cache.fork(handle)
        assert forked.block_table == handle.block_table
        assert forked.num_cached_tokens == handle.num_cached_tokens
        self.compare_tree()
        other = Sequence(forked, sequence.tokens, sequence.num_written, sequence.epoch)
        self.model.sequences.append(other)
        return other

    def publish(self, sequence: Sequence, num_written: int, *, include_tail: bool) -> None:
        handle = sequence.handle
        publish = partial(self.cache.publish, handle, num_written, include_tail=include_tail)
        for copy in handle.copies:
            if num_written > handle.block_table.index(copy.target) * self.block_size:
                self.refused(publish, PendingCopiesError, f"block {copy.target}", f"{num_written} tokens")
                return
        num_published = num_written if include_tail else num_written - num_written % self.block_size
        table = self.model.publish(sequence, num_published)
        publish()
        assert handle.block_table == table
        if num_published % self.block_size:
            self.model.end_with_tail(table[num_published // self.block_size], num_published)
        self.compare_tree()

    def give_back(self, sequence: Sequence, start: int, end: int) -> None:
        handle = sequence.handle
        give_back = partial(self.cache.give_back, handle, start, end)
        if not start <= end < len(sequence.tokens):
            self.refused(give_back, InvalidArgumentError, f"[{start}, {end})", f"{len(sequence.tokens)};")
        elif handle.copies:
            self.refused(give_back, PendingCopiesError, "1 copies are pending")
        else:
            table = self.model.given_back(sequence, start, end)
            num_held = len(held_blocks(sequence))
            assert give_back() == num_held - len(table) + table.count(HOLE)
            assert handle.block_table == table
            self.compare_tree()

    def release(self, sequence: Sequence) -> None:
        self.model.sequences.remove(sequence)
        self.cache.release(sequence.handle)
        assert sequence.handle.is_released
        self.released = sequence.handle
        self.compare_tree()

    def evict(self, num_blocks: int) -> None:
        idle, in_use = self.model.idle(), self.model.in_use()
        num_evicted = self.cache.evict(num_blocks)
        num_expected = min(num_blocks, self.model.num_evictable(None, idle))
        assert num_expected <= num_evicted <= min(num_blocks, len(idle))
        self.compare_tree(num_evicted, in_use)

    def pin(
        self, prompt: list[int], namespace: Namespace, *, num_public: int = 0, ttl_seconds: float = inf
    ) -> Pin | None:
        """None when it is refused, as it should be."""
        pin_prefix = partial(
            self.cache.pin, prompt, namespace, num_public_tokens=num_public, ttl_seconds=ttl_seconds
        )
        num_blocks = len(prompt) // self.block_size
        if not num_blocks:
            words = (f"has {len(prompt)} tokens", f"needs {self.block_size}")
            self.refused(pin_prefix, InvalidArgumentError, *words)
            return None
        whole = prompt[: num_blocks * self.block_size]
        route = self.oracle.route(whole, namespace, num_public // self.block_size)
        if route.num_blocks < num_blocks:
            self.refused(
                pin_prefix, NotCachedError, f"{route.num_blocks} of the prefix's {num_blocks} blocks"
            )
            return None
        path = self.oracle.path(whole, namespace, route)
        block_ids = [self.oracle.block_of[prefix] for prefix in path]
        pinned = self.model.pinned()
        num_more = len(set(block_ids) - set(pinned))
        max_blocks = self.settings.max_pinned_blocks
        if len(pinned) + num_more > max_blocks:
            words = (f"{num_more} more blocks", f"{len(pinned)} of at most {max_blocks}")
            self.refused(pin_prefix, PinLimitError, *words)
            return None
        pin = pin_prefix()
        assert (pin.block_ids, pin.num_tokens) == (block_ids, len(whole))
        self.model.deadline_of[pin] = self.seconds + ttl_seconds
        self.model.tokens_of[pin] = whole
        self.oracle.touch(path, namespace.tenant)
        self.compare_tree()
        return pin

    def renew_pin(self, pin: Pin) -> None:
        self.cache.renew_pin(pin)
        self.model.deadline_of[pin] = self.seconds + pin.ttl_seconds

    def end_pin(self, pin: Pin) -> None:
        self.cache.end_pin(pin)
        del self.model.deadline_of[pin]
        self._require_ended(pin)
        self.compare_tree()

    def let_pass(self, seconds: float) -> None:
        """Pins and priorities end; the cache finds out when it is asked for something."""
        self.seconds += seconds
        due = [pin for pin, deadline in self.model.deadline_of.items() if deadline <= self.seconds]
        for pin in due:
            del self.model.deadline_of[pin]
        self._due_pins += due

    def set_quota(self, tenant: str, quota: TenantQuota) -> None:
        set_quota = partial(self.cache.set_quota, tenant, quota)
        floors = {other: quota.floor_blocks for other, quota in self.model.quotas.items()}
        num_floor_blocks = sum((floors | {tenant: quota.floor_blocks}).values())
        num_blocks = self.settings.num_blocks
        if num_floor_blocks > num_blocks:
            words = (f"{num_floor_blocks} blocks", f"the pool has {num_blocks}", repr(tenant))
            self.refused(set_quota, InvalidArgumentError, *words)
            return
        set_quota()
        self.model.quotas[tenant] = quota
        self.compare_tree()

    def reset(self) -> None:
        pins = list(self.model.deadline_of)
        self.cache.reset()
        self.model.reset()
        self.compare_tree()
        for pin in pins:
            self._require_ended(pin)

    def refused(
        self, operation: Callable[[], object], error_type: type[PrefixCacheError], *words: str
    ) -> None:
        """The operation raises this error with these words, and has changed nothing."""
        before = observed(self.cache)
        with pytest.raises(error_type) as caught:
            operation()
        assert type(caught.value) is error_type
        assert all(part in str(caught.value) for part in words), (words, str(caught.value))
        assert observed(self.cache) == before

    def compare_tree(
        self, num_evicted: int = 0, in_use: Collection[BlockId] = (), tenant: str | None = None
    ) -> set[BlockId]:
        """The tree is as expected, but for blocks evicted for a tenant. Returns those."""
        found = read_tree(self.cache)
        gone = self.oracle.block_of.keys() - found.keys()
        assert len(gone) == num_evicted
        floors = {
            other: min(quota.floor_blocks, self.model.num_cached(other))
            for other, quota in self.model.quotas.items()
            if other != tenant
        }
        evicted_ids = self.model.note_evicted(gone)
        assert evicted_ids.isdisjoint(in_use)
        assert all(self.model.num_cached(other) >= floor for other, floor in floors.items())
        assert {prefix: block.block_id for prefix, block in found.items()} == self.oracle.block_of
        payers = {prefix: block.payers for prefix, block in found.items() if prefix.scope == PUBLIC}
        assert payers == self.oracle.payers_of
        self.model.forget_stale()
        return evicted_ids

    def _require_below_ceiling(self, tenant: str) -> None:
        usage = self.cache.usage(tenant)
        assert usage.ceiling_blocks is None or usage.num_blocks <= usage.ceiling_blocks

    def _require_ended(self, pin: Pin) -> None:
        for operation in (self.cache.renew_pin, self.cache.end_pin):
            self.refused(partial(operation, pin), PinExpiredError, "has ended")
        assert pin.is_ended
