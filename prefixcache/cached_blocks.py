"""The blocks that the tree keeps, and the room that evicting them makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prefixcache.block_keys import KEY_BYTES, BlockKey, unpack_keys
from prefixcache.block_life import BlockLife, BlockLifeStats, departure_of
from prefixcache.block_pool import BlockId, BlockPool
from prefixcache.events import EventLog
from prefixcache.eviction import EvictionOrder
from prefixcache.eviction_policies import EvictionPolicy
from prefixcache.eviction_room import num_idle_at_end, require_below_ceiling, require_room
from prefixcache.graveyard import Graveyard
from prefixcache.history import History, Loss, Tombstone
from prefixcache.journal import Journal
from prefixcache.namespace import Namespace
from prefixcache.quota import TenantAccount, TenantLedger
from prefixcache.radix_node import RadixNode, Visit
from prefixcache.radix_tree import Path, RadixTree
from prefixcache.tiers import Tiers
from prefixcache.traffic_sample import TrafficSample
from prefixcache.turns import Turn, turn_of

_NUM_DUG = 64
"""Parts of a forgotten tree that each request takes away."""


class CachedBlocks:
    """Keeps pool, tree, eviction order, ledger, history and events in step: all changes go through here.

    Knows nothing of handles. Time is logical: requests are numbered, and a node was last used
    when it was last touched, by the number of the latest request.

    Invariants, proved by `check`:
    - the cached blocks of the pool are those of the tree;
    - nothing idle is ever above something live, so every idle block can be evicted, quotas aside;
    - the eviction order has exactly the leaves whose last block is idle;
    - owners and payers are charged for exactly what they have in the tree;
    - no node was used later than now;
    - the blocks that came less those that left are those of the tree;
    - those of the pool and the tree.
    """

    __slots__ = (
        "_clock",
        "_graveyard",
        "_history",
        "_journal",
        "_last_tick",
        "_ledger",
        "_life",
        "_num_changes",
        "_order",
        "_policy",
        "_pool",
        "_sample",
        "_tiers",
        "_tree",
    )

    def __init__(
        self,
        pool: BlockPool,
        tree: RadixTree,
        ledger: TenantLedger,
        policy: EvictionPolicy,
        history: History,
        events: EventLog | None,
        sample: TrafficSample | None,
        tiers: Tiers,
        clock: Callable[[], float],
    ) -> None:
        """Requires: all are empty, and nobody else changes them."""
        self._pool = pool
        self._tree = tree
        self._ledger = ledger
        self._policy = policy
        self._order = EvictionOrder(policy)
        self._history = history
        self._journal = Journal(tree, policy, history, events)
        self._sample = sample
        self._tiers = tiers
        self._clock = clock
        self._graveyard = Graveyard()
        self._last_tick = 0
        self._num_changes = 0
        self._life = BlockLife()

    @property
    def last_tick(self) -> int:
        """Number of the latest request."""
        return self._last_tick

    @property
    def num_changes(self) -> int:
        """Times that blocks came into the tree or left it."""
        return self._num_changes

    @property
    def num_evicted(self) -> int:
        """Blocks evicted so far."""
        return self._life.num_evicted

    def life_stats(self) -> BlockLifeStats:
        """See `PrefixCache.block_life`."""
        return self._life.stats()

    def next_tick(self) -> int:
        """Number the next request."""
        self._graveyard.dig(_NUM_DUG)
        self._last_tick += 1
        return self._last_tick

    def turn_of(self, path: Path, tokens: bytes, namespace: Namespace) -> Turn:
        """The turn of a prompt with this path; always the first if the policy has no use for it. O(edges)."""
        if self._sample is None:
            return Turn(0, 0)
        return turn_of(self._tree, self._history, path, tokens, namespace)

    def require_available(self, num_blocks: int, account: TenantAccount) -> None:
        """Raise QuotaExceededError or OutOfBlocksError unless `allocate` would find so many.

        O(1); with floors or at a ceiling O(leaves looked at until there are enough), at worst O(nodes).
        """
        if account.quota.ceiling_blocks is not None:
            require_below_ceiling(self._pool, self._tree, account, num_blocks)
        if num_blocks <= self._pool.num_free:
            return
        has_floors = self._ledger.has_floors(besides=account)
        require_room(self._pool, self._tree, self._order, account, num_blocks, has_floors=has_floors)

    def allocate(self, num_blocks: int, account: TenantAccount) -> list[BlockId]:
        """Take free blocks, evicting as many as are missing. Requires: so many are available.

        O(num_blocks + evicted * log leaves).
        """
        num_over = account.num_blocks_over_ceiling(num_blocks)
        if num_over:
            num_evicted = self._evict_own(account, num_over)
            assert num_evicted == num_over, "an idle block of its own could not be evicted"
        num_missing = num_blocks - self._pool.num_free
        if num_missing > 0:
            num_evicted = self.evict(num_missing, account)
            assert num_evicted == num_missing, "an idle block could not be evicted"
        account.num_own_blocks += num_blocks
        return self._pool.allocate(num_blocks)

    def retain(self, block_ids: Sequence[BlockId]) -> None:
        """Add one reference to each. Requires: none is free; as for `release`. O(blocks + log leaves)."""
        self._pool.retain(block_ids)
        self._reconsider_deepest(block_ids)

    def retain_cached(self, block_ids: Sequence[BlockId]) -> None:
        """`retain`, twice as fast. Requires: all are in the tree."""
        self._pool.retain_cached(block_ids)
        if block_ids:
            self._reconsider(block_ids[-1])

    def release(self, block_ids: Sequence[BlockId], account: TenantAccount) -> None:
        """Drop one reference of each, held for this tenant; what is cached stays until it is evicted.

        Requires: the cached ones lie on one path, the deepest last. O(blocks + log leaves).
        """
        account.num_own_blocks -= self._pool.release(block_ids)
        self._reconsider_deepest(block_ids)

    def touch(self, path: Path, visit: Visit, *, is_new_use: bool, num_used_blocks: int = 0) -> RadixNode:
        """The path is used now. Returns the node that ends with it, or the root.

        A node that goes on behind the path is split there, so that the rest keeps its age.
        `is_new_use` when a request comes; later, blocks behind its first `num_used_blocks` are of
        new use to it if others have made them.
        Requires: the path's blocks are held, since ages must not change in the eviction order.
        O(depth), and the bytes of the edge that is split.
        """
        end = path.end
        if path.num_end_blocks < len(end.block_ids):
            end = self._tree.split(end, path.num_end_blocks)
        node, now = end, self._clock()
        promise = (visit.priority, visit.priority_ends)
        while node.parent is not None:
            node.last_used = self._last_tick
            node.turn = max(node.turn, visit.path_turn if is_new_use else visit.turn)
            if is_new_use or (node.depth >= num_used_blocks and node.created != visit.tick):
                node.num_uses += 1
                self._life.reuse_gap.observe(now - node.used_seconds, len(node.block_ids))
                former = (node.priority, node.priority_ends)
                if promise >= former or node.priority_ends <= now:
                    node.priority, node.priority_ends = promise
            node.used_seconds = now
            if node.is_public and node.payers[-1] is not visit.account:
                self._ledger.charge_user(node, visit.account)
            self._policy.used(node)
            node = node.parent
        if self._sample is not None:
            self._sample.touched(end, self._last_tick, is_new_use=is_new_use)
        return end

    def insert(
        self,
        parent: RadixNode,
        scope: bytes,
        edge: bytes,
        block_ids: list[BlockId],
        visit: Visit,
        *,
        is_output: bool,
    ) -> RadixNode | None:
        """Put a run, or a tail, below `parent`, in the place of a tail that it makes superfluous.

        A leaf grows only by blocks that the request which made it adds. Returns the node that now
        ends with the run; None, and nothing has changed, when another chunk with the same hash has
        its place. Requires: live blocks whose rows are written, behind the end of the path touched
        last. O(bytes + log nodes).
        """
        tree = self._tree
        if tree.is_taken(parent, scope, edge):
            return None
        tail = tree.superseded_tail(parent, scope, edge)
        if tail is not None:
            self._policy.removed(tail, 1, is_evicted=False)
            self._life.superseded(1)
            self._drop(tail, 1)
        visit.account.num_own_blocks -= self._pool.add_cached(block_ids)
        is_whole = len(edge) >= tree.chunk_bytes
        is_continued = is_whole and _is_continued(parent, scope, visit, is_output)
        if is_continued and self._pool.num_references(parent.block_ids[-1]) == 2:  # so no pin ends there
            node = parent
            tree.grow(node, edge, block_ids)
        else:
            owner = visit.account if scope else self._ledger.public
            node = tree.insert(parent, scope, edge, block_ids, owner)
            node.created = visit.tick
            node.last_used = self._last_tick
            node.stored_seconds = node.used_seconds = self._clock()
            node.turn, node.is_output = visit.turn, is_output
            node.priority, node.priority_ends = visit.priority, visit.priority_ends
        self._take_in(node, len(block_ids))
        if node.is_public:
            self._ledger.charge_user(node, visit.account)
        if self._sample is not None and is_whole:
            self._sample.inserted(node, len(block_ids), self._last_tick)
        return node

    def resume_at(self, tick: int) -> None:
        """Number requests on from there, if so many have not come yet."""
        self._last_tick = max(self._last_tick, tick)

    def take_in_restored(self, node: RadixNode) -> None:
        """A node of a snapshot has been put into the tree. Requires: its blocks are live. O(blocks)."""
        node.stored_seconds = node.used_seconds = self._clock()
        self._pool.add_cached(node.block_ids)
        self._take_in(node, len(node.block_ids))
        if node.num_uses:
            self._policy.used(node)

    def evict(self, num_blocks: int, account: TenantAccount | None = None) -> int:
        """Evict up to `num_blocks` idle blocks, and return how many there were.

        Each is the last block of the coldest leaf. Blocks of tenants at their floor are left, but
        those of `account`, for which it is done, go after all others. O(num_blocks * log leaves).
        """
        num_evicted = 0
        while num_evicted < num_blocks and (leaf := self._next_victim(account)) is not None:
            limit = num_blocks - num_evicted
            if leaf.owner.quota.floor_blocks and leaf.owner is not account:
                limit = min(limit, leaf.owner.num_surplus_blocks)
                if not limit:
                    self._order.park(leaf)
                    continue
            num_evicted += self._evict_from(leaf, limit, account)
        return num_evicted

    def note_loss(self, key: BlockKey, loss: Loss, account: TenantAccount) -> None:
        """Remember a run that is not in the tree for another reason than eviction."""
        tombstone = Tombstone(loss, self._last_tick, self._clock(), "", account.tenant, 0, 0, 0)
        self._journal.bury(key, tombstone)

    def quota_changed(self, account: TenantAccount) -> None:
        """O(leaves log leaves)."""
        self._order.quota_changed(account)

    def note_expiry(self, last_block_id: BlockId, seconds: float) -> None:
        """Nothing keeps the path to this block any more since then, unless it has a priority. O(depth)."""
        end = self._tree.node_ending_with(last_block_id)
        assert end is not None
        for node in end.lineage():
            if not node.priority:
                node.priority_ends = seconds

    def forget_all(self) -> None:
        """The tree is empty from now on; what is held becomes free when it is released.

        What was learned about the traffic stays. The old tree is taken apart as requests come.
        O(tenants + places of tiers).
        """
        self._num_changes += 1
        self._life.reset()
        self._pool.forget_cached()
        self._tiers.clear()
        self._graveyard.bury([*self._order.piles(), *self._ledger.forget_cached(), *self._tree.clear()])
        self._journal.cleared()
        if self._sample is not None:
            self._sample.clear()
        self._order = EvictionOrder(self._policy)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests. O(everything)."""
        self._pool.check()
        self._tree.check()
        nodes = [node for _, node in self._tree.nodes()]
        all_ids = map(BlockId, range(self._pool.num_blocks))
        cached_ids = {block_id for node in nodes for block_id in node.block_ids}
        assert cached_ids == set(filter(self._pool.is_cached, all_ids))
        assert len(cached_ids) == self._life.num_cached
        for node in nodes:
            assert node.parent is not None
            assert node.last_used <= self._last_tick
            run = node.parent.block_ids[-1:] + node.block_ids
            is_idle = [self._pool.is_idle(block_id) for block_id in run]
            assert is_idle == sorted(is_idle)
        self._order.check(node for node in nodes if node.is_leaf and self._pool.is_idle(node.block_ids[-1]))
        self._ledger.check(nodes)
        if self._sample is not None:
            self._sample.check()
        self._tiers.check(self._pool.num_blocks)

    def _take_in(self, node: RadixNode, num_blocks: int) -> None:
        """The last `num_blocks` of a node have come into the tree."""
        self._num_changes += 1
        self._life.stored(num_blocks)
        node.owner.num_cached_blocks += num_blocks
        self._ledger.charge(node.payers, num_blocks)
        if node.owner.quota.floor_blocks:
            self._order.unpark(node.owner, node.owner.num_surplus_blocks)
        self._journal.came(node, num_blocks)

    def _next_victim(self, account: TenantAccount | None) -> RadixNode | None:
        """The coldest leaf; when only parked ones are left, the coldest of `account` itself."""
        leaf = self._order.coldest(self._clock())
        if leaf is None and account is not None and account.leaves:
            leaf = account.leaves[0][-1]
        return leaf

    def _evict_own(self, account: TenantAccount, num_blocks: int) -> int:
        """Evict up to so many idle blocks of a tenant with a ceiling, whatever its floor, for itself."""
        num_evicted = 0
        self._order.end_priorities(self._clock())
        while num_evicted < num_blocks and account.leaves:
            leaf: RadixNode = account.leaves[0][-1]
            num_evicted += self._evict_from(leaf, num_blocks - num_evicted, account, is_over_ceiling=True)
        return num_evicted

    def _evict_from(
        self, leaf: RadixNode, limit: int, account: TenantAccount | None, *, is_over_ceiling: bool = False
    ) -> int:
        """Evict idle blocks from the end of a leaf, at least one and at most `limit`."""
        num_blocks = num_idle_at_end(self._pool, leaf, limit)
        assert num_blocks
        seconds = self._clock()
        loss = Loss.EXPIRED if leaf.priority_ends <= seconds else Loss.EVICTED
        lost_for = "" if account is None else account.tenant
        tombstone = Tombstone(
            loss, self._last_tick, seconds, self._policy.name, lost_for, num_blocks, leaf.queue, leaf.turn
        )
        if self._tiers and not leaf.is_tail(self._tree.block_size):
            self._tiers.demote(leaf, unpack_keys(self._tree.keys_of(leaf)[-num_blocks * KEY_BYTES :]))
        self._journal.goes(leaf, num_blocks, tombstone)
        departure = departure_of(leaf, loss, account, is_over_ceiling=is_over_ceiling)
        self._life.evicted(leaf, num_blocks, departure, seconds)
        leaf.owner.num_evicted_blocks += num_blocks
        self._drop(leaf, num_blocks)
        return num_blocks

    def _drop(self, leaf: RadixNode, num_blocks: int) -> None:
        """Take the last blocks of a leaf out of the tree."""
        self._num_changes += 1
        self._order.discard(leaf)
        leaf.owner.num_cached_blocks -= num_blocks
        if leaf.payers:
            self._ledger.charge(leaf.payers, -num_blocks)
        dropped_ids = leaf.block_ids[-num_blocks:]
        survivor = leaf if num_blocks < len(leaf.block_ids) else leaf.parent
        self._tree.shrink(leaf, num_blocks)
        self._pool.remove_cached(dropped_ids)
        if survivor is not None and not survivor.is_root:
            self._reconsider(survivor.block_ids[-1])

    def _reconsider_deepest(self, block_ids: Sequence[BlockId]) -> None:
        """After a change of counts along a path: only its deepest block can be the end of a leaf."""
        is_cached = self._pool.is_cached
        for block_id in reversed(block_ids):
            if is_cached(block_id):
                self._reconsider(block_id)
                break

    def _reconsider(self, block_id: BlockId) -> None:
        """Put the leaf that ends with this block into the eviction order, or take it out."""
        node = self._tree.node_ending_with(block_id)
        if node is not None:
            if node.is_leaf and self._pool.is_idle(block_id):
                self._order.put(node)
            else:
                self._order.discard(node)


def _is_continued(parent: RadixNode, scope: bytes, visit: Visit, is_output: bool) -> bool:
    """Whether a run behind this node is of the same request, kind and age, so that one node holds both."""
    return (
        parent.created == visit.tick
        and not parent.num_uses
        and parent.is_leaf
        and parent.scope == scope
        and parent.is_output == is_output
        and parent.payers in ((), (visit.account,))
    )
