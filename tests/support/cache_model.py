"""What a cache must have and may do, recounted each time from who holds what."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from math import lcm

from support.prefix_oracle import MAX_PAYERS, PUBLIC, Prefix, PrefixOracle

from prefixcache import (
    HOLE,
    BlockId,
    CacheHandle,
    CacheStats,
    Match,
    OutOfBlocksError,
    Pin,
    PrefixCacheError,
    QuotaExceededError,
    TenantQuota,
    TenantUsage,
)

PARTS = lcm(*range(1, MAX_PAYERS + 1))
"""Parts of a block that can be divided among any number of payers."""


@dataclass(eq=False)
class Sequence:
    """What the worker would know of one handle."""

    handle: CacheHandle
    tokens: list[int]
    num_written: int
    epoch: int
    is_ending: bool = False
    """A tail with more room in it was published: nothing behind it may be written or published."""

    @property
    def tenant(self) -> str:
        return self.handle.namespace.tenant


def held_blocks(sequence: Sequence) -> list[BlockId]:
    """The table without its holes."""
    return [block_id for block_id in sequence.handle.block_table if block_id != HOLE]


def first_hole(table: list[BlockId]) -> int:
    """Its place, or the table's length when there is none."""
    return table.index(HOLE) if HOLE in table else len(table)


@dataclass
class TenantCounts:
    """What a tenant's requests came to."""

    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_hit_tokens: int = 0
    num_resumed_hit_tokens: int = 0
    num_bypassed: int = 0
    num_evicted_blocks: int = 0


@dataclass(eq=False, kw_only=True)
class CacheModel:
    """Who holds what. Nothing is kept up to date that can be counted again."""

    num_blocks: int
    oracle: PrefixOracle
    quotas: dict[str, TenantQuota] = field(default_factory=dict)
    sequences: list[Sequence] = field(default_factory=list)
    deadline_of: dict[Pin, float] = field(default_factory=dict)
    tokens_of: dict[Pin, list[int]] = field(default_factory=dict)
    """The pins that have not ended."""
    stale_ids: set[BlockId] = field(default_factory=set)
    """Blocks that are held, and were cached until others took their place or the cache was reset."""
    epoch: int = 0
    """How often the cache was reset."""
    counts: defaultdict[str, TenantCounts] = field(default_factory=lambda: defaultdict(TenantCounts))
    num_evicted: int = 0
    num_copied: int = 0

    def held(self) -> Counter[BlockId]:
        """How many sequences hold each block; a pending copy holds its source."""
        held: Counter[BlockId] = Counter()
        for sequence in self.sequences:
            held.update(held_blocks(sequence))
            held.update(copy.source for copy in sequence.handle.copies)
        return held

    def pinned(self) -> Counter[BlockId]:
        """How many pins hold each block."""
        return Counter(block_id for pin in self.deadline_of for block_id in pin.block_ids)

    def cached_ids(self) -> set[BlockId]:
        return set(self.oracle.block_of.values())

    def in_use(self) -> set[BlockId]:
        """Blocks that must not be evicted."""
        return {*self.held(), *self.pinned()}

    def free_ids(self) -> set[BlockId]:
        return set(map(BlockId, range(self.num_blocks))) - self.cached_ids() - set(self.held())

    def num_references(self, block_id: BlockId) -> int:
        """All claims on a block, that of the tree included."""
        in_tree = block_id in self.cached_ids() or block_id in self.stale_ids
        return self.held()[block_id] + self.pinned()[block_id] + in_tree

    def count_request(
        self, tenant: str, num_tokens: int, num_cached: int, *, uses_cache: bool, is_resumed: bool
    ) -> None:
        counts = self.counts[tenant]
        if is_resumed:
            counts.num_resumed_hit_tokens += num_cached
        elif uses_cache:
            counts.num_requests += 1
            counts.num_prompt_tokens += num_tokens
            counts.num_hit_tokens += num_cached
        else:
            counts.num_bypassed += 1

    def renew_pins(self, prompt: list[int], match: Match, seconds: float) -> None:
        """A prompt has hit so much: all of a pin, or all but the last token of a prompt that is the pin's."""
        partial_id = match.partial[0] if match.partial is not None else None
        for pin in self.deadline_of:
            last_id = pin.block_ids[-1]
            if last_id in match.block_ids or (last_id == partial_id and prompt == self.tokens_of[pin]):
                self.deadline_of[pin] = seconds + pin.ttl_seconds

    def note_evicted(self, prefixes: Iterable[Prefix]) -> set[BlockId]:
        """Returns their blocks."""
        evicted_ids = set()
        for prefix in prefixes:
            owner = self.oracle.owner_of(prefix)
            if owner is not None:
                self.counts[owner].num_evicted_blocks += 1
            evicted_ids.add(self.oracle.forget(prefix))
        self.num_evicted += len(evicted_ids)
        return evicted_ids

    def given_back(self, sequence: Sequence, start: int, end: int) -> list[BlockId]:
        """The table as it must be when tokens [start, end) are not read any more."""
        table, size = list(sequence.handle.block_table), self.oracle.block_size
        places = [i for i in range(len(table)) if start <= i * size and (i + 1) * size <= end]
        behind = table[end // size]
        if behind == HOLE or (self.held()[behind] == 1 and behind not in self.cached_ids()):
            for i in places:
                table[i] = HOLE
        return table

    def publish(self, sequence: Sequence, num_tokens: int) -> list[BlockId]:
        """Put a sequence's first tokens into the oracle. Returns its block table as it must be afterwards."""
        handle, tokens = sequence.handle, sequence.tokens[:num_tokens]
        table, cached_ids = list(handle.block_table), self.cached_ids()
        tokens = tokens[: first_hole(table) * self.oracle.block_size]
        num_tokens = len(tokens)
        if not tokens or not handle.use_cache or sequence.epoch != self.epoch:
            return table
        if table[(num_tokens - 1) // self.oracle.block_size] in cached_ids:
            return table  # published before
        num_declared = handle.num_public_tokens // self.oracle.block_size
        route = self.oracle.route(tokens, handle.namespace, num_declared)
        path = self.oracle.path(tokens, handle.namespace, route)
        adopted_ids = [self.oracle.block_of[prefix] for prefix in path]
        num_adopted = len(adopted_ids)
        if table[:num_adopted] != adopted_ids:
            next_ids = table[num_adopted : num_adopted + 1]
            if any(block_id != HOLE and self.num_references(block_id) > 1 for block_id in next_ids):
                return table  # put off: a fork would be left on another path than its next block
            table[:num_adopted] = adopted_ids
        self.oracle.insert(tokens, handle.namespace, num_declared, table)
        self.stale_ids |= cached_ids - self.cached_ids()
        return table

    def end_with_tail(self, block_id: BlockId, num_tokens: int) -> None:
        """So many tokens end in a block that is published as a tail: who has more in it may not use it."""
        for sequence in self.sequences:
            if block_id in sequence.handle.block_table and len(sequence.tokens) > num_tokens:
                sequence.is_ending = True
                sequence.num_written = min(sequence.num_written, num_tokens)

    def reset(self) -> None:
        """Pins end, nothing is cached any more, and what is held never will be."""
        self.stale_ids |= self.cached_ids()
        self.oracle.clear()
        self.deadline_of.clear()
        self.epoch += 1

    def forget_stale(self) -> None:
        """A stale block that is free or cached again is as any other. To be called after each change."""
        self.stale_ids &= set(self.held()) - self.cached_ids()

    def num_cached(self, tenant: str) -> int:
        """Private cached blocks."""
        return sum(self.oracle.owner_of(prefix) == tenant for prefix in self.oracle.block_of)

    def num_own(self, tenant: str) -> int:
        """Blocks of the tenant: cached ones, and those that its sequences hold and that never were."""
        held = {
            block_id
            for sequence in self.sequences
            if sequence.tenant == tenant
            for block_id in (*held_blocks(sequence), *(copy.source for copy in sequence.handle.copies))
        }
        return self.num_cached(tenant) + len(held - self.cached_ids() - self.stale_ids)

    def num_shares(self, tenant: str) -> int:
        """Its parts of public blocks, in `PARTS`ths."""
        payers_of = self.oracle.payers_of.values()
        return sum(PARTS // len(payers) for payers in payers_of if tenant in payers)

    def num_over_ceiling(self, tenant: str, num_new: int) -> int:
        """Blocks that it has to give up for `num_new` more."""
        quota = self.quotas.get(tenant)
        if quota is None or quota.ceiling_blocks is None:
            return 0
        return max(0, self.num_own(tenant) + num_new - quota.ceiling_blocks)

    def num_to_evict(self, tenant: str, num_new: int) -> int:
        """Blocks that go when it allocates `num_new`."""
        num_missing = num_new - len(self.free_ids())
        return max(0, num_missing, self.num_over_ceiling(tenant, num_new))

    def idle(self, retained: Collection[BlockId] = ()) -> list[Prefix]:
        """What is cached and not used by anybody."""
        busy = self.in_use().union(retained)
        return [prefix for prefix, block_id in self.oracle.block_of.items() if block_id not in busy]

    def num_evictable(self, tenant: str | None, idle: SequenceOf[Prefix]) -> int:
        """Idle blocks that surely can be evicted for a tenant.

        Of another tenant with a floor, only what it has above it; and no public block that such a
        tenant has anything behind.
        """
        floors = {
            other: quota.floor_blocks
            for other, quota in self.quotas.items()
            if quota.floor_blocks and other != tenant
        }
        floored = [prefix for prefix in self.oracle.block_of if self.oracle.owner_of(prefix) in floors]
        num_idle = Counter(
            self.oracle.owner_of(prefix)
            for prefix in idle
            if prefix.scope != PUBLIC or not any(self.oracle.is_below(below, prefix) for below in floored)
        )
        return sum(
            min(num, max(0, self.num_cached(owner) - floors[owner])) if owner in floors else num
            for owner, num in num_idle.items()
        )

    def room_error(
        self,
        tenant: str,
        num_new: int,
        retained: Collection[BlockId] = (),
    ) -> PrefixCacheError | None:
        """Why a tenant that has `retained` already cannot have `num_new` blocks."""
        idle = self.idle(retained)
        num_own_idle = sum(self.oracle.owner_of(prefix) == tenant for prefix in idle)
        if self.num_over_ceiling(tenant, num_new) > num_own_idle:
            ceiling_blocks = self.quotas[tenant].ceiling_blocks
            assert ceiling_blocks is not None
            return QuotaExceededError(
                tenant=tenant,
                num_needed=num_new,
                ceiling_blocks=ceiling_blocks,
                num_held=self.num_own(tenant),
                num_idle=num_own_idle,
            )
        num_free, num_evictable = len(self.free_ids()), self.num_evictable(tenant, idle)
        if num_new > num_free + num_evictable:
            return OutOfBlocksError(num_needed=num_new, num_free=num_free, num_idle=num_evictable)
        return None

    def usage(self, tenant: str) -> TenantUsage:
        quota = self.quotas.get(tenant, TenantQuota())
        counts = self.counts.get(tenant, TenantCounts())
        num_own = self.num_own(tenant)
        return TenantUsage(
            tenant=tenant,
            floor_blocks=quota.floor_blocks,
            ceiling_blocks=quota.ceiling_blocks,
            num_blocks=num_own,
            num_cached_blocks=self.num_cached(tenant),
            num_charged_blocks=num_own + self.num_shares(tenant) / PARTS,
            num_requests=counts.num_requests,
            num_prompt_tokens=counts.num_prompt_tokens,
            num_hit_tokens=counts.num_hit_tokens,
            num_resumed_hit_tokens=counts.num_resumed_hit_tokens,
            num_bypassed=counts.num_bypassed,
            num_evicted_blocks=counts.num_evicted_blocks,
        )

    def used_slots(self, held: Iterable[BlockId]) -> set[tuple[BlockId, int]]:
        """Every slot that a sequence has a token in, and all those of blocks that only a copy reads."""
        handles, size = [sequence.handle for sequence in self.sequences], self.oracle.block_size
        places = ((h.block_table[i // size], i % size) for h in handles for i in range(h.num_tokens))
        used = {(block_id, slot) for block_id, slot in places if block_id != HOLE}
        sources = set(held).difference(*(handle.block_table for handle in handles))
        return used | {(source, slot) for source in sources for slot in range(size)}

    def stats(self, *, num_nodes: int) -> CacheStats:
        held, cached = self.held(), self.cached_ids()
        return CacheStats(
            num_blocks=self.num_blocks,
            num_free=len(self.free_ids()),
            num_idle=len(cached - set(held)),
            num_live=len(held),
            num_pinned=len(self.pinned()),
            num_pinned_only=len(set(self.pinned()) - set(held)),
            num_live_unshared=sum(len(held_blocks(sequence)) for sequence in self.sequences),
            num_used_slots=len(self.used_slots(held)),
            num_evicted=self.num_evicted,
            num_copied=self.num_copied,
            num_nodes=num_nodes,
        )
