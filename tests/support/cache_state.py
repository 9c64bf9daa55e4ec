"""All that can be seen of a cache, and its counts made anew."""

from __future__ import annotations

from typing import Any, NamedTuple

from prefixcache import PrefixCache


class BlockCounts(NamedTuple):
    num_free: int
    num_idle: int
    num_live: int


def recounted(cache: PrefixCache) -> BlockCounts:
    """What `stats` has to say, counted from the handles and the dump alone."""
    live = {block_id for handle in cache._handles for block_id in handle.held_blocks}
    live |= {copy.source for handle in cache._handles for copy in handle.copies}
    cached = {block_id for node in cache.dump() for block_id in node.block_ids}
    return BlockCounts(cache.num_blocks - len(live | cached), len(cached - live), len(live))


def counted(cache: PrefixCache) -> BlockCounts:
    stats = cache.stats()
    return BlockCounts(stats.num_free, stats.num_idle, stats.num_live)


def observed(cache: PrefixCache) -> dict[str, Any]:
    """Equal before and after whatever changes nothing."""
    return {
        "stats": cache.stats(),
        "nodes": cache.dump(),
        "keys": cache.block_keys(),
        "usage": [cache.usage(tenant) for tenant in cache.tenants()],
        "pins": [(pin.serial, pin.expires_at, pin.block_ids) for pin in cache.pins()],
        "handles": sorted(
            (handle.block_table, handle.token_ids, handle.copies, handle.num_cached_tokens)
            for handle in cache._handles
        ),
        "references": list(cache._pool._ref_counts),
        "history": list(cache._history._tombstones.items()),
    }
