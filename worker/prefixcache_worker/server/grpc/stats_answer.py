"""The counts as a message."""

from __future__ import annotations

from dataclasses import asdict

from prefixcache.v1 import cache_pb2
from prefixcache_worker.engine.stats import EngineStats


def stats_to_proto(stats: EngineStats) -> cache_pb2.GetStatsResponse:
    """The message of what the engine has counted."""
    return cache_pb2.GetStatsResponse(
        blocks=cache_pb2.BlockStats(**asdict(stats.blocks)),
        tokens=cache_pb2.TokenStats(**asdict(stats.tokens)),
        requests=cache_pb2.RequestStats(**asdict(stats.requests)),
        tiers=[cache_pb2.TierStats(**asdict(tier)) for tier in stats.tiers],
    )
