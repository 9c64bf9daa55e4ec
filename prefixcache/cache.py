"""The prefix cache: which blocks a sequence may read, and which it has to fill itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf

from xxhash import xxh3_64_intdigest

from prefixcache.audit import check_references
from prefixcache.block_keys import BlockKey, BlockKeys
from prefixcache.block_life import BlockLifeStats
from prefixcache.block_pool import BlockId, BlockPool, OnFree
from prefixcache.cached_blocks import CachedBlocks
from prefixcache.errors import InvalidArgumentError, PendingMovesError
from prefixcache.events import EventLog, EventState
from prefixcache.eviction_policies import make_policy
from prefixcache.explain import Explanation, explain_miss
from prefixcache.handle import BlockCopy, CacheHandle
from prefixcache.history import History
from prefixcache.inspection import CacheStats, NodeDump, dump_node
from prefixcache.live_handles import LiveHandles
from prefixcache.namespace import Namespace
from prefixcache.pins import Pin, PinTable
from prefixcache.policy_state import PolicyState
from prefixcache.quota import TenantLedger, TenantQuota, TenantUsage
from prefixcache.radix_tree import Match, RadixTree
from prefixcache.restoring import Restorer
from prefixcache.running_save import RunningSave
from prefixcache.sightings import TenantSightings
from prefixcache.snapshot import ReadAttachment, RowReader, RowWriter, open_snapshot
from prefixcache.snapshot_tree import copy_tree, restore_blocks
from prefixcache.tiers import NumWorthRestoring, TierMove, Tiers
from prefixcache.token_chunks import TOKEN_BYTES, ChunkHash, TokenIds, pack_tokens
from prefixcache.traffic_sample import TrafficSample
from prefixcache.tree_view import TreeView, view_of_all, view_of_owners
from prefixcache.turn_credit import TurnCreditPolicy


class PrefixCache:
    """Shares the KV blocks of common prompt prefixes between sequences. Holds no tensors.

    A sequence acquires a handle, extends it token by token, publishes the rows it has written,
    and releases it. What was published stays in a radix tree until its blocks are needed. The
    caller owns the tensors, and executes the copies that the cache orders.

    Time is logical: requests are numbered as they are acquired. Seconds of `clock` count only for
    what was promised in seconds: pins and priorities. One thread at a time.

    Invariants, proved by `check`:
    - free, idle and live blocks are disjoint and sum to the pool;
    - count(block) = tables of live handles that hold it + pending copies that read it + pins
      + 1 if the tree holds it, or held it until it was reset;
    - the cached blocks of a table are its first ones, and the first ones of one path, from the
      root, that has the handle's tokens and that the handle's namespace may read. So nothing
      idle is ever above something live;
    - those of `CachedBlocks`, of `PinTable`, and of every live handle.
    """

    shares_prefixes = True
    """What tells it from schemes of bookkeeping that find nothing and may stand in its place."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int = 16,
        policy: str = "auto",
        quotas: Mapping[str, TenantQuota] | None = None,
        max_pinned_share: float = 0.5,
        public_after_tenants: int | None = None,
        key_secret: bytes = b"",
        events: EventLog | None = None,
        history_capacity: int | None = None,
        tiers: Sequence[tuple[str, int]] = (),
        num_worth_restoring: NumWorthRestoring = len,
        clock: Callable[[], float] = time.monotonic,
        chunk_hash: ChunkHash = xxh3_64_intdigest,
        on_free: OnFree | None = None,
    ) -> None:
        """An empty cache.

        policy: which blocks go first when room is needed; one of `POLICIES`.
        quotas: bounds of tenants; others have none. See also `set_quota` and `set_default_quota`.
        max_pinned_share: how much of the pool may be pinned.
        public_after_tenants: what so many tenants have computed each for itself, prompts with a
            salt aside, becomes readable for all; None leaves it private for ever. Remembers
            about 800 bytes for each block of the pool.
        key_secret: makes block keys those of this deployment; scopes have that of the namespace.
        events: where changes of the index are told.
        history_capacity: lost runs remembered, about 300 bytes each; by default 4,096 and one more
            for every 16 blocks.
        tiers: names, and how many blocks each takes, of where evicted blocks go, the nearest first.
        num_worth_restoring: given the tiers, from 1 on, of blocks behind a prompt's match, how many of
            them to copy and not compute; by default all.
        clock: seconds for the ends of pins and priorities.
        chunk_hash: may be replaced to provoke collisions.
        on_free: told which blocks have just become free, so that a test can poison them.

        Raises InvalidArgumentError when an argument is out of its bounds.
        """
        if block_size < 1 or block_size & (block_size - 1):
            raise InvalidArgumentError(f"block_size is {block_size}; give a power of two")
        if not 0 <= max_pinned_share <= 1:
            raise InvalidArgumentError(f"max_pinned_share is {max_pinned_share}; give 0 to 1")
        if history_capacity is not None and history_capacity < 0:
            raise InvalidArgumentError(f"history_capacity is {history_capacity}; give 0 or more")
        self._events = events
        self._block_keys = BlockKeys(chunk_bytes=block_size * TOKEN_BYTES, secret=key_secret)
        self._pool = BlockPool(num_blocks, on_free=on_free)
        self._ledger = TenantLedger(num_blocks, quotas or {})
        self._tree = RadixTree(block_size, chunk_hash, self._block_keys, self._ledger.public)
        if history_capacity is None:
            history_capacity = 4096 + num_blocks // 16
        self._history = History(history_capacity)
        eviction_policy = make_policy(policy, num_blocks=num_blocks, block_size=block_size)
        self._policy_name = policy
        self._sample = None
        if isinstance(eviction_policy, TurnCreditPolicy):
            self._sample = TrafficSample(self._tree, num_blocks, eviction_policy)
        self._tiers = Tiers(
            tiers, chunk_bytes=block_size * TOKEN_BYTES, num_worth_restoring=num_worth_restoring
        )
        self._blocks = CachedBlocks(
            pool=self._pool,
            tree=self._tree,
            ledger=self._ledger,
            policy=eviction_policy,
            history=self._history,
            events=events,
            sample=self._sample,
            tiers=self._tiers,
            clock=clock,
        )
        self._pins = PinTable(
            pool=self._pool,
            tree=self._tree,
            blocks=self._blocks,
            ledger=self._ledger,
            max_blocks=int(max_pinned_share * num_blocks),
            clock=clock,
        )
        sightings = None
        if public_after_tenants is not None:
            sightings = TenantSightings(self._block_keys, public_after_tenants, capacity=4 * num_blocks)
        self._handles = LiveHandles(
            pool=self._pool,
            tree=self._tree,
            blocks=self._blocks,
            ledger=self._ledger,
            pins=self._pins,
            sightings=sightings,
            restorer=Restorer(self._tree, self._blocks, self._tiers, self._block_keys),
            clock=clock,
        )

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def block_size(self) -> int:
        return self._tree.block_size

    @property
    def num_available_blocks(self) -> int:
        """Blocks that can be had, quotas aside: the free ones, and the idle ones by eviction."""
        self._pins.end_due()
        return self._pool.num_free + self._pool.num_idle

    @property
    def num_changes(self) -> int:
        """Requests so far, and times that blocks came or went: equal as long as a snapshot would be. O(1)."""
        return self._blocks.last_tick + self._blocks.num_changes

    def num_holders(self, block_id: BlockId) -> int:
        """Handles, pins and pending copies that keep a block: at 0 it can be had. O(1)."""
        pool = self._pool
        return pool.num_references(block_id) - (pool.is_cached(block_id) or pool.is_stale(block_id))

    def match(self, token_ids: TokenIds, namespace: Namespace, *, num_public_tokens: int = 0) -> Match:
        """The longest cached prefix that `acquire` would find now; always less than the whole prompt.

        Changes nothing, not even ages. Raises InvalidArgumentError.
        O(edges + blocks + log nodes) for packed tokens.
        """
        path = self._handles.walk(pack_tokens(token_ids), namespace, num_public_tokens)
        return Match(path.block_ids, path.num_tokens, path.partial)

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
    ) -> CacheHandle:
        """Take room for a whole prompt, sharing what is cached of it.

        At least one token is left to compute, so that there are logits. Chunks wholly inside the
        first `num_public_tokens` are looked for among public nodes only, and will be published as
        public. Behind the last shared block, the longest partial match is ordered as a copy; it
        is left out when the pool is too full to keep its source. Without `use_cache` nothing is
        shared, now or later. With `max_cached_tokens` no more than the first so many tokens are, as for
        a sequence that needs the logits of the others; what it publishes is shared as always, and it
        counts as bypassing the cache, not as a request that missed.

        What the sequence uses and publishes is evicted after everything of a lower `priority`, for
        `priority_seconds` from now. A block keeps its highest priority, and the longest of these;
        when that ends, it has none. With `is_resumed`, as for a sequence that was preempted, what is
        found counts as resumed and not as a hit. What tiers have behind the match comes into the tree
        again, in blocks that are new to the pool; their rows come by `take_moves`.

        Raises InvalidArgumentError, NotPublisherError when the namespace may not declare tokens
        public, QuotaExceededError, or OutOfBlocksError if the prompt finds no room; nothing has
        changed then. O(edges + blocks + evicted * log leaves).
        """
        return self._handles.acquire(
            token_ids,
            namespace,
            num_public_tokens=num_public_tokens,
            use_cache=use_cache,
            max_cached_tokens=max_cached_tokens,
            priority=priority,
            priority_seconds=priority_seconds,
            is_resumed=is_resumed,
        )

    def extend(self, handle: CacheHandle, token_ids: TokenIds) -> list[BlockCopy]:
        """Make room for the sequence's next tokens.

        When their first slot lies in a block that others refer to as well, the handle gets a copy
        of it instead; the order is returned, and pending in `handle.copies`.

        Raises InvalidArgumentError, QuotaExceededError, or OutOfBlocksError if they find no room;
        nothing has changed then. O(tokens + evicted * log leaves).
        """
        return self._handles.extend(handle, token_ids)

    def complete_copies(self, handle: CacheHandle) -> None:
        """The caller has executed `handle.copies`: their sources are kept no longer. O(log leaves)."""
        self._handles.complete_copies(handle)

    def fork(self, handle: CacheHandle) -> CacheHandle:
        """A second claim on the same blocks, for a sequence that goes on differently.

        Requires: both extend before they write again, which copies a tail they share.
        Raises PendingCopiesError when copies are pending. O(blocks).
        """
        return self._handles.fork(handle)

    def give_back(self, handle: CacheHandle, start_token: int, end_token: int) -> int:
        """The rows of these tokens will not be read any more, as those that a window has left behind.

        The blocks wholly in [`start_token`, `end_token`) are given back, unless the block behind them
        is in the tree or another handle's too: nobody holds a block without all before it. Call it
        again as the range grows. The table has holes then, and the handle publishes only what
        is before the first. Returns how many blocks were given back now.

        Raises InvalidArgumentError unless the range ends before the last token, or PendingCopiesError.
        O(blocks in the range + log leaves).
        """
        return self._handles.give_back(handle, start_token, end_token)

    def publish(self, handle: CacheHandle, num_written_tokens: int, *, include_tail: bool = False) -> int:
        """Let others share the first `num_written_tokens`, whose rows the caller has written.

        Whole blocks go into the tree, and with `include_tail` also the partly filled one behind
        them. Blocks that the tree already has are adopted: the table switches to the tree's, so
        that equal prompts computed side by side end up stored once. A handle acquired without
        `use_cache`, or before a reset, publishes nothing. Returns how many tokens the tree did not have
        before.

        Requires: with `include_tail`, the room behind the written rows of that block is neither
        written nor published any more; further tokens come by `extend`, which copies it.
        Raises InvalidArgumentError, or PendingCopiesError when a pending copy would overwrite
        such rows. O(edges + blocks + log nodes).
        """
        return self._handles.publish(handle, num_written_tokens, include_tail=include_tail)

    def release(self, handle: CacheHandle) -> None:
        """Give everything back. What is in the tree stays there as long as there is room.

        Pending copies are dropped: requires that none of them is being executed.
        Raises HandleReleasedError the second time. O(blocks + log leaves).
        """
        self._handles.release(handle)

    def evict(self, num_blocks: int) -> int:
        """Evict up to `num_blocks` idle blocks, and return how many there were.

        Each is the last block of the coldest leaf; tenants at their floor lose none. Raises
        InvalidArgumentError when `num_blocks` is negative. O(num_blocks * log leaves).
        """
        if num_blocks < 0:
            raise InvalidArgumentError(f"num_blocks to evict is {num_blocks}; give 0 or more")
        self._pins.end_due()
        return self._blocks.evict(num_blocks)

    def pin(
        self,
        token_ids: TokenIds,
        namespace: Namespace,
        *,
        ttl_seconds: float = inf,
        seconds_left: float | None = None,
        num_public_tokens: int = 0,
    ) -> Pin:
        """Keep the whole blocks of a cached prefix until `ttl_seconds` after its last hit.

        Until the first hit it is kept for `seconds_left`, if that is given.
        A hit is a prompt that begins with all of them; `renew_pin` is as good. Pinned blocks count
        as the tenant's like all cached ones. Raises InvalidArgumentError for less than a block,
        NotCachedError, or PinLimitError. O(edges + blocks).
        """
        return self._pins.pin(pack_tokens(token_ids), namespace, num_public_tokens, ttl_seconds, seconds_left)

    def require_pin_room(
        self, token_ids: TokenIds, namespace: Namespace, *, num_public_tokens: int = 0
    ) -> list[BlockId]:
        """Raise PinLimitError if there is no room for a pin, whether or not the prefix is cached.

        Returns those of its blocks that are. Changes nothing. Raises InvalidArgumentError for less
        than a block. O(edges + blocks).
        """
        self._pins.end_due()
        return self._pins.require_room(pack_tokens(token_ids), namespace, num_public_tokens)

    def renew_pin(self, pin: Pin, *, ttl_seconds: float | None = None) -> None:
        """The pin's time starts again, and is another one from now on if it is given.

        Raises InvalidArgumentError, or PinExpiredError when the pin has ended. O(log pins).
        """
        self._pins.end_due()
        self._pins.renew(pin, ttl_seconds)

    def end_pin(self, pin: Pin) -> None:
        """Its blocks may be evicted from now on; handles that use them are not disturbed.

        Raises PinExpiredError when it has ended before. O(blocks).
        """
        self._pins.end_due()
        self._pins.end(pin)

    def pins(self) -> list[Pin]:
        """All pins, the one that ends first first. O(pins)."""
        self._pins.end_due()
        return list(self._pins)

    def take_moves(self) -> list[TierMove]:
        """The copies between pool and tiers ordered since the last time, which the caller executes now.

        Requires: all are executed before any row of the pool is read or written again, pending
        `handle.copies` too, with the same effect as one after the other. O(1).
        """
        return self._tiers.take_moves()

    def set_quota(self, tenant: str, quota: TenantQuota | None) -> None:
        """Change a tenant's bounds, from now on; None: to the default ones. Nothing is evicted at once.

        Raises InvalidArgumentError when all floors would sum to more than the pool. O(leaves log leaves).
        """
        self._blocks.quota_changed(self._ledger.set_quota(tenant, quota))

    def set_default_quota(self, quota: TenantQuota) -> None:
        """Change the bounds of all tenants that have none of their own, those not heard of yet too.

        Such a tenant costs no memory once it holds nothing. Nothing is evicted at once.
        Raises InvalidArgumentError when it has a floor. O(tenants that hold blocks * leaves).
        """
        for account in self._ledger.set_default_quota(quota):
            if account.num_cached_blocks:
                self._blocks.quota_changed(account)

    def usage(self, tenant: str) -> TenantUsage:
        """What a tenant holds and has asked for. Raises UnknownTenantError. O(1)."""
        return self._ledger.known_account(tenant).usage()

    def tenants(self) -> list[str]:
        """All tenants that have acquired anything or have a quota."""
        return [account.tenant for account in self._ledger.accounts()]

    def explain(
        self,
        token_ids: TokenIds,
        namespace: Namespace,
        *,
        num_public_tokens: int = 0,
        tells_of_others: bool = True,
    ) -> Explanation:
        """How much of a prompt is cached, where it leaves what is, and why the rest is missing.

        Without `tells_of_others`, what other tenants and domains have is as if it were not there, also
        in the time it takes. Changes nothing. Raises InvalidArgumentError.
        O(tokens), and for each domain the children of the path's nodes; without others, O(tokens + edges).
        """
        tokens = pack_tokens(token_ids)
        if not tokens:
            raise InvalidArgumentError("the prompt is empty; give at least 1 token")
        path = self._handles.walk(tokens, namespace, num_public_tokens)
        owner = None if tells_of_others else self._ledger.find_account(namespace.tenant)
        return explain_miss(self._tree, self._history, path, tokens, namespace, for_owner=owner)

    def reset(self) -> None:
        """Forget everything cached, at once and whatever is running; pins end.

        Sequences that run finish on what they hold, and publish nothing more. What was counted
        and learned stays. O(tenants + pinned blocks + places of tiers): requests that come later take
        the old tree apart, and its blocks, a few at a time.
        """
        self._pins.end_all()
        self._handles.next_epoch()
        self._blocks.forget_all()

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        model: str = "",
        layout: str = "",
        dtype: str = "",
        write_row: RowWriter | None = None,
    ) -> int:
        """Save the index, and with `write_row` the KV of its blocks; return the bytes of the file.

        `model`, `layout` and `dtype` say what rows are, and must with `write_row`: `restore` refuses
        any others. Not saved is
        what was promised in seconds: pins, and priorities that end. Written aside and renamed, so
        that at `path` is always a whole snapshot. Raises InvalidArgumentError, OSError, or what
        `write_row` raises; PendingMovesError when rows are still to come from a tier. The former snapshot
        is still there then. O(bytes).
        """
        save = self.begin_save(model=model, layout=layout, dtype=dtype)
        try:
            return save.write(path, write_row).num_bytes
        finally:
            save.end()

    def begin_save(
        self, *, model: str = "", layout: str = "", dtype: str = "", attachment: bytes = b""
    ) -> RunningSave:
        """Begin what `save` does as a whole, so that another thread can write while the cache goes on.

        The `attachment` is kept in the file for `restore`: what the caller knows beside the cache.
        Requires: `RunningSave.end` is called on this thread. Raises PendingMovesError when rows are still to
        come from a tier. O(nodes + blocks), and until the end O(1) for each block that becomes free.
        """
        self._require_no_moves()
        tree = copy_tree(self._tree, self._blocks.last_tick)
        header = self._snapshot_header(model, layout, dtype)
        return RunningSave(tree, self._pool, header, attachment)

    def restore(
        self,
        path: str | os.PathLike[str],
        *,
        model: str = "",
        layout: str = "",
        dtype: str = "",
        read_row: RowReader | None = None,
        read_attachment: ReadAttachment | None = None,
    ) -> int:
        """Fill the empty cache from a snapshot, and return how many blocks it has now.

        Before anything else, `read_attachment` is given what was saved beside it. When there are fewer
        free blocks than saved ones, those used last are taken. Raises SnapshotDamagedError,
        SnapshotMismatchError when the snapshot is another model's, layout's, dtype's, block size's or
        secret's, InvalidArgumentError when something is cached already or the snapshot has rows and
        `read_row` is not given or the other way round, OSError, or what `read_attachment` raises;
        nothing has changed then but the rows of free blocks. PendingMovesError when some of those rows
        are still to be copied to a tier. O(bytes).
        """
        self._require_no_moves()
        with open_snapshot(path, header=self._snapshot_header(model, layout, dtype)) as snapshot:
            if read_attachment is not None:
                read_attachment(snapshot.attachment)
            return restore_blocks(snapshot, read_row, self._pool, self._tree, self._blocks, self._ledger)

    def event_state(self) -> EventState:
        """Everything cached now as events, for a subscriber that starts or has missed some. O(blocks).

        Raises InvalidArgumentError when the cache was made without `events`.
        """
        if self._events is None:
            raise InvalidArgumentError("the cache has no event log; make it with events=EventLog(...)")
        return self._events.state_events(self._tree.runs())

    def block_keys(self) -> dict[BlockKey, BlockKey]:
        """The key of every whole cached block, and the one it is chained from. O(blocks)."""
        parents: dict[BlockKey, BlockKey] = {}
        for run in self._tree.runs():
            parents.update(zip(run.block_keys, [run.parent_key, *run.block_keys[:-1]], strict=True))
        return parents

    def stats(self) -> CacheStats:
        """Counts as they are now. O(live handles + pinned blocks + tiers)."""
        self._pins.end_due()
        num_free, num_pinned_only = self._pool.num_free, self._pins.num_pinned_only
        num_idle = self._pool.num_idle + num_pinned_only
        num_live = self.num_blocks - num_free - num_idle
        return CacheStats(
            num_blocks=self.num_blocks,
            num_free=num_free,
            num_idle=num_idle,
            num_live=num_live,
            num_pinned=self._pins.num_pinned_blocks,
            num_pinned_only=num_pinned_only,
            num_live_unshared=sum(len(handle.held_blocks) for handle in self._handles),
            num_used_slots=num_live * self.block_size - self._handles.num_vacant_slots,
            num_evicted=self._blocks.num_evicted,
            num_copied=self._handles.num_copied,
            num_nodes=self._tree.num_nodes,
            tiers=self._tiers.stats(),
        )

    def block_life(self) -> BlockLifeStats:
        """How long blocks stayed, how often they were used, and why they left, since the start. O(1)."""
        return self._blocks.life_stats()

    def policy_state(self) -> PolicyState:
        """What the eviction policy does at the moment, and why. O(1)."""
        if self._sample is not None:
            return self._sample.policy_state()
        return PolicyState.of_fixed(self._policy_name)

    def estimate_hit_ratios(self) -> dict[float, float] | None:
        """What share of the prompts' whole blocks a pool of 0.5, 1, 2 and 4 times the size would hit.

        With the traffic of late, and the rule that the policy `auto` follows at the moment. Taken from
        a sample of up to 256 blocks, as if the whole pool held what can be evicted: running
        sequences, pins, quotas and partly filled blocks make a real pool smaller. None before any
        sampled block was asked for, and with other policies, which take no sample. O(1).
        """
        return None if self._sample is None else self._sample.hit_ratios()

    def dump(self, max_depth: int = 0) -> list[NodeDump]:
        """The tree, parents first, down to `max_depth` nodes from the root (0: all of it).

        Raises InvalidArgumentError when `max_depth` is negative. O(tokens and blocks of those nodes).
        """
        if max_depth < 0:
            raise InvalidArgumentError(f"max_depth is {max_depth}; give 0 for all, or more")
        return [dump_node(node, domain, self._pool) for domain, node in self._tree.nodes(max_depth)]

    def view(
        self, tenant: str | None = None, *, max_depth: int = 0, max_nodes: int | None = None
    ) -> TreeView:
        """The tree as one tenant may see it, or with None all of it; parents first, no token unpacked.

        For a tenant there are the public nodes and its own, in an order and with ids of their own. Public
        ones are joined where only what it does not see divides them, and nothing is told of their use:
        no other tenant's private prompts change anything in the view, or the time it takes.
        `max_depth` as for `dump`. Raises InvalidArgumentError. O(nodes to be seen + their blocks).
        """
        if max_depth < 0 or (max_nodes is not None and max_nodes < 0):
            raise InvalidArgumentError(
                f"max_depth is {max_depth} and max_nodes {max_nodes}; give 0 for any depth, or more"
            )
        if tenant is None:
            return view_of_all(self._tree, self._pool, max_depth, max_nodes)
        owners = (self._ledger.public, self._ledger.find_account(tenant))
        return view_of_owners(self._tree, self._pool, owners, max_depth, max_nodes)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests. O(everything)."""
        check_references(self._pool, self._tree, self._ledger, self._pins, self._handles)
        self._blocks.check()
        self._pins.check()
        stats = self.stats()
        assert stats.num_live >= 0
        assert len(self._handles) or not stats.num_live

    def _require_no_moves(self) -> None:
        if self._tiers.num_pending_moves:
            raise PendingMovesError(
                f"{self._tiers.num_pending_moves} copies between pool and tiers are pending; "
                "take and execute them before"
            )

    def _snapshot_header(self, model: str, layout: str, dtype: str) -> dict[str, str | int]:
        return {
            "block_size": self.block_size,
            "dtype": dtype,
            "layout": layout,
            "model": model,
            "secret_id": self._block_keys.secret_id,
        }
