"""How many blocks eviction could free: all or nothing needs to know before anything is evicted."""

from __future__ import annotations

from collections import Counter

from prefixcache.block_pool import BlockPool
from prefixcache.errors import OutOfBlocksError, QuotaExceededError
from prefixcache.eviction import EvictionOrder
from prefixcache.quota import TenantAccount
from prefixcache.radix_node import RadixNode
from prefixcache.radix_tree import RadixTree


def require_below_ceiling(pool: BlockPool, tree: RadixTree, account: TenantAccount, num_blocks: int) -> None:
    """Raise QuotaExceededError if so many more are above the tenant's ceiling, even without its idle blocks.

    O(1) below it, else O(its leaves looked at until there are enough), at worst O(its nodes).
    """
    num_over = account.num_blocks_over_ceiling(num_blocks)
    if num_over and num_over > (num_own := num_own_idle(pool, tree, account, num_over)):
        assert account.quota.ceiling_blocks is not None
        raise QuotaExceededError(
            tenant=account.tenant,
            num_needed=num_blocks,
            ceiling_blocks=account.quota.ceiling_blocks,
            num_held=account.num_blocks,
            num_idle=num_own,
        )


def require_room(
    pool: BlockPool,
    tree: RadixTree,
    order: EvictionOrder,
    account: TenantAccount,
    num_blocks: int,
    *,
    has_floors: bool,
) -> None:
    """Raise OutOfBlocksError unless so many blocks are free or can be evicted for a tenant.

    O(1), or when other tenants have floors O(leaves looked at until there are enough), at worst
    O(nodes).
    """
    num_missing, num_evictable = num_blocks - pool.num_free, pool.num_idle
    if num_missing > 0 and has_floors:
        num_evictable = num_idle_at_hand(pool, order, account, num_missing)
        if num_evictable < num_missing:
            num_evictable = num_idle_above_floors(pool, tree, account)
    if num_missing > num_evictable:
        raise OutOfBlocksError(num_needed=num_blocks, num_free=pool.num_free, num_idle=num_evictable)


def num_idle_at_end(pool: BlockPool, leaf: RadixNode, num_enough: int) -> int:
    """Idle blocks at the end of a leaf, counted up to `num_enough`. O(counted)."""
    num_idle = 0
    for block_id in reversed(leaf.block_ids):
        if num_idle >= num_enough or not pool.is_idle(block_id):
            break
        num_idle += 1
    return num_idle


def num_own_idle(pool: BlockPool, tree: RadixTree, account: TenantAccount, num_enough: int) -> int:
    """Idle blocks of a tenant with a quota; exact unless there are `num_enough`. At worst O(its nodes)."""
    num_idle = 0
    for *_, leaf in account.leaves:
        num_idle += num_idle_at_end(pool, leaf, num_enough - num_idle)
        if num_idle == num_enough:
            return num_idle
    own = tree.owned_by(account)
    return sum(pool.is_idle(block_id) for node in own for block_id in node.block_ids)


def num_idle_at_hand(pool: BlockPool, order: EvictionOrder, account: TenantAccount, num_enough: int) -> int:
    """Idle blocks at the ends of leaves that `account` may take, counted up to `num_enough`."""
    num_idle = 0
    num_taken: Counter[TenantAccount] = Counter()
    for leaf in order:
        limit, owner = num_enough - num_idle, leaf.owner
        if owner.quota.floor_blocks and owner is not account:
            limit = min(limit, owner.num_surplus_blocks - num_taken[owner])
        num_at_end = num_idle_at_end(pool, leaf, limit)
        num_taken[owner] += num_at_end
        num_idle += num_at_end
        if num_idle == num_enough:
            break
    return num_idle


def num_idle_above_floors(pool: BlockPool, tree: RadixTree, account: TenantAccount) -> int:
    """Idle blocks that `account` may take: no more of another tenant than it has above its floor.

    Public blocks above private ones of a tenant with a floor are not counted, for they may have to
    stay under what the floor protects. So at least this many can be evicted. O(nodes).
    """
    num_idle: Counter[TenantAccount] = Counter()
    under_floor: set[RadixNode | None] = set()  # nodes with something above a floor below them
    for node in reversed([node for _, node in tree.nodes()]):
        owner = node.owner
        has_floor = owner.quota.floor_blocks > 0 and owner is not account
        if has_floor or node in under_floor:
            under_floor.add(node.parent)
        if has_floor or node not in under_floor:
            num_idle[owner] += sum(map(pool.is_idle, node.block_ids))
    return sum(
        num if owner is account or not owner.quota.floor_blocks else min(num, owner.num_surplus_blocks)
        for owner, num in num_idle.items()
    )
