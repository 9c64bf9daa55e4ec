"""The counts as a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from prefixcache.v1 import cache_pb2
from prefixcache_worker.engine.stats import EngineStats
from prefixcache_worker.server.metrics.latency import RecentSeconds


def stats_to_proto(stats: EngineStats, recent: Mapping[str, RecentSeconds]) -> cache_pb2.GetStatsResponse:
    """The message of what the engine has counted, and of the last observations by name. O(observations)."""
    departures = {} if stats.life is None else stats.life.num_left
    return cache_pb2.GetStatsResponse(
        blocks=cache_pb2.BlockStats(**asdict(stats.blocks)),
        tokens=cache_pb2.TokenStats(**asdict(stats.tokens)),
        requests=cache_pb2.RequestStats(**asdict(stats.requests)),
        tiers=[cache_pb2.TierStats(**asdict(tier)) for tier in stats.tiers],
        latencies=[
            cache_pb2.LatencyStats(name=name, **asdict(seconds.summary()))
            for name, seconds in recent.items()
            if seconds.count
        ],
        evictions=[
            cache_pb2.EvictionStats(cause=departure.value, num_blocks=num_blocks)
            for departure, num_blocks in departures.items()
        ],
    )
