"""Counting everything again: what `PrefixCache.check` does besides asking its parts."""

from __future__ import annotations

from collections import Counter

from prefixcache.block_pool import BlockId, BlockPool
from prefixcache.handle import CacheHandle
from prefixcache.live_handles import LiveHandles
from prefixcache.namespace import PUBLIC_SCOPE
from prefixcache.pins import PinTable
from prefixcache.quota import TenantAccount, TenantLedger
from prefixcache.radix_node import RadixNode
from prefixcache.radix_tree import RadixTree
from prefixcache.token_chunks import TOKEN_BYTES


def check_references(
    pool: BlockPool, tree: RadixTree, ledger: TenantLedger, pins: PinTable, handles: LiveHandles
) -> None:
    """Raise AssertionError unless every count of the pool is what its holders sum to. O(everything)."""
    node_of_block = {block_id: node for _, node in tree.nodes() for block_id in node.block_ids}
    all_ids = list(map(BlockId, range(pool.num_blocks)))
    counts = Counter(node_of_block.keys())
    counts.update(filter(pool.is_stale, all_ids))
    counts.update(pins.references())
    own_ids: dict[TenantAccount, set[BlockId]] = {}
    for handle in handles:
        handle.check()
        held = [*handle.held_blocks, *(copy.source for copy in handle.copies)]
        counts.update(held)
        own = own_ids.setdefault(handle.visit.account, set())
        own.update(i for i in held if not pool.is_cached(i) and not pool.is_stale(i))
        if handle.epoch == handles.epoch:
            _check_path(handle, node_of_block, tree.block_size)
    wrong = [i for i in all_ids if pool.num_references(i) != counts[i]]
    assert not wrong, _reference_sentence(wrong, pool, counts)
    for account in ledger.accounts():
        assert account.num_own_blocks == len(own_ids.get(account, ()))


def _reference_sentence(wrong: list[BlockId], pool: BlockPool, counts: Counter[BlockId]) -> str:
    first = wrong[0]
    return (
        f"{len(wrong)} blocks have another number of references than of holders: the first is block {first}, "
        f"with {pool.num_references(first)} references and {counts[first]} holders"
    )


def _check_path(handle: CacheHandle, node_of_block: dict[BlockId, RadixNode], block_size: int) -> None:
    """Walk up from the node with a table's deepest cached block, and compare ids, tokens and owner."""
    cached_ids = [block_id for block_id in handle.block_table if block_id in node_of_block]
    if not cached_ids:
        return
    end = node_of_block[cached_ids[-1]]
    path = end.lineage()
    num_cached = len(cached_ids)
    assert cached_ids == handle.block_table[:num_cached]
    assert cached_ids == [block_id for node in path for block_id in node.block_ids][:num_cached]
    path_tokens = b"".join(node.edge for node in path)[: num_cached * block_size * TOKEN_BYTES]
    assert handle.tokens.startswith(path_tokens)
    root = path[0].parent
    assert root is not None
    assert root.scope == handle.namespace.domain
    assert end.scope in (PUBLIC_SCOPE, handle.namespace.scope)
