"""What the page tells of the cache: its blocks, what prompts find, and how blocks live and go."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from prefixcache import BlockLifeStats
from prefixcache_worker.engine.stats import BlockStats, LookupStats, TierStats, TokenStats
from prefixcache_worker.server.metrics.families import (
    Labels,
    counter,
    counters,
    gauge,
    gauges,
    histogram,
    info,
)
from prefixcache_worker.server.metrics.reading import Reading

DROPPED = ("superseded", "reset")
"""Departures that are no evictions: nobody needed the room."""


def cache_families(reading: Reading) -> Iterator[Metric]:
    """O(samples)."""
    stats = reading.stats
    yield from _block_families(stats.blocks)
    yield gauge(
        "pinned_blocks", "Blocks that pins hold, whether or not requests do too.", reading.num_pinned_blocks
    )
    yield gauge("tree_nodes", "Nodes of the radix tree.", reading.num_nodes)
    yield from _token_families(stats.tokens)
    yield from _lookup_families(stats.lookups)
    yield gauges(
        "estimated_hit_ratio",
        "Share of the latest prompts' whole blocks that a pool of so many times the size would hit.",
        ["pool_size"],
        {(f"{size:g}",): ratio for size, ratio in reading.estimated_hit_ratios.items()},
    )
    if stats.life is not None:
        yield from _life_families(stats.life)
    yield from _tier_families(stats.tiers)


def _block_families(blocks: BlockStats) -> Iterator[Metric]:
    yield info(
        "cache_config",
        "The pool's geometry.",
        {
            "block_size": str(blocks.block_size),
            "num_blocks": str(blocks.total),
            "block_bytes": str(blocks.block_bytes),
        },
    )
    yield gauge("kv_cache_usage_ratio", "Share of the blocks that requests hold.", blocks.live / blocks.total)
    yield gauges(
        "blocks",
        "Blocks of the pool by state.",
        ["state"],
        {("free",): blocks.free, ("idle",): blocks.idle, ("live",): blocks.live},
    )
    yield gauge(
        "unshared_blocks",
        "Blocks that requests would hold if none were shared.",
        blocks.live_unshared,
    )
    num_live_slots = blocks.live * blocks.block_size
    yield gauge(
        "kv_waste_ratio",
        "Share of the slots that requests hold that have no token; 0 when they hold none.",
        1 - blocks.used_slots / num_live_slots if num_live_slots else 0,
    )
    yield counter("blocks_copied", "Blocks copied because one who writes shared them.", blocks.copied)


def _token_families(tokens: TokenStats) -> Iterator[Metric]:
    yield counters(
        "prompt_tokens",
        "Prompt tokens of requests that ran, by where their KV came from; once for each request.",
        ["source"],
        {("cached",): tokens.cached, ("computed",): tokens.computed},
    )
    yield counter("restored_tokens", "Cached prompt tokens whose KV came back from a tier.", tokens.restored)
    yield counter(
        "kv_rows_read", "Rows of KV that one layer has read, a shared run once.", tokens.kv_rows_read
    )
    yield counter(
        "kv_rows_unshared",
        "Rows of KV that one layer would have read if nothing were shared.",
        tokens.kv_rows_unshared,
    )


def _lookup_families(lookups: LookupStats) -> Iterator[Metric]:
    yield counter(
        "cache_queried_tokens",
        "Prompt tokens of requests that looked for them in the cache; once for each request.",
        lookups.queried_tokens,
    )
    yield counter("cache_hit_tokens", "Those of the queried tokens that were found.", lookups.hit_tokens)
    yield counter(
        "bypassed_requests",
        "Requests that looked for nothing: with the cache off, or with scores of the prompt.",
        lookups.bypassed_requests,
    )


def _life_families(life: BlockLifeStats) -> Iterator[Metric]:
    num_left = {departure.value: num for departure, num in life.num_left.items()}
    yield counter("blocks_stored", "Blocks that came into the cache.", life.num_stored)
    yield counters(
        "blocks_evicted",
        "Cached blocks given up for room, by cause.",
        ["cause"],
        {(cause,): num for cause, num in num_left.items() if cause not in DROPPED},
    )
    yield counters(
        "blocks_dropped",
        "Cached blocks that left though nobody needed their room, by cause.",
        ["cause"],
        {(cause,): num_left[cause] for cause in DROPPED},
    )
    yield histogram(
        "block_residency_seconds", "From when a block was stored to its eviction.", life.residency
    )
    yield histogram("block_idle_seconds", "From the last use of a block to its eviction.", life.idle)
    yield histogram(
        "block_reuse_gap_seconds",
        "From one use of a cached block to the next request that uses it.",
        life.reuse_gap,
    )


def _tier_families(tiers: tuple[TierStats, ...]) -> Iterator[Metric]:
    """Families without samples where there are no tiers."""
    places: dict[Labels, float] = {}
    moves: dict[Labels, float] = {}
    for tier in tiers:
        places[tier.name, "used"] = tier.used_blocks
        places[tier.name, "free"] = tier.num_blocks - tier.used_blocks
        moves[tier.name, "stored"] = tier.stored
        moves[tier.name, "restored"] = tier.restored
        moves[tier.name, "evicted"] = tier.evicted
    yield gauges("tier_blocks", "Places of a tier by state.", ["tier", "state"], places)
    yield counters(
        "tier_blocks_moved",
        "Blocks that came into a tier, went back to the pool, or were given up.",
        ["tier", "way"],
        moves,
    )
