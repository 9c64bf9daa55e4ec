"""Everything that a page tells of the engine, read at one moment between two steps."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache import PrefixCache, TenantUsage, UnknownTenantError
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.stats import EngineStats
from prefixcache_worker.engine.usage_ledger import Totals
from prefixcache_worker.server.metrics.request_times import RequestTimes, TimesCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Plain numbers, so that the page is made of them while the engine goes on."""

    stats: EngineStats
    times: TimesCounts
    totals: dict[str, Totals]
    """By tenant, all those without a name here as one."""
    holdings: dict[str, TenantUsage]
    """What the named tenants hold, where something is shared."""
    estimated_hit_ratios: dict[float, float]
    """By size of the pool relative to this one; empty where there is no sample."""
    num_nodes: int
    num_pinned_blocks: int


def read(engine: Engine, times: RequestTimes) -> Reading:
    """The reading now. O(live requests + named tenants), whatever the size of the pool."""
    cache, totals = engine.cache, times.tenants.by_tenant()
    in_cache = cache.stats()
    holdings, ratios = {}, None
    if isinstance(cache, PrefixCache):
        holdings = _holdings(cache, totals)
        ratios = cache.estimate_hit_ratios()
    return Reading(
        stats=engine.stats(),
        times=times.counts(),
        totals=totals,
        holdings=holdings,
        estimated_hit_ratios=ratios or {},
        num_nodes=in_cache.num_nodes,
        num_pinned_blocks=in_cache.num_pinned,
    )


def _holdings(cache: PrefixCache, tenants: dict[str, Totals]) -> dict[str, TenantUsage]:
    holdings = {}
    for tenant in tenants:
        try:
            holdings[tenant] = cache.usage(tenant)
        except UnknownTenantError:
            continue  # it holds nothing and was forgotten, or it is all those without a name
    return holdings
