"""What tenants have cost and what they hold, put together from all who know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from prefixcache import UnknownTenantError
from prefixcache_worker.engine.answer import Answer
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.usage_ledger import Totals


@dataclass(slots=True, kw_only=True)
class TenantUsage(Totals):
    """What one tenant's requests have cost so far, the live ones included, and what it holds now."""

    tenant: str
    num_blocks: int = 0
    """Blocks of its own, cached or in use."""
    num_charged_blocks: float = 0.0
    """The same, and its parts of public blocks: these tell how many other tenants use them."""
    num_pinned_blocks: int = 0
    num_evicted_blocks: int = 0
    floor_blocks: int = 0
    ceiling_blocks: int | None = None


def tenant_usage(engine: Engine, tenants: Iterable[str] | None) -> list[TenantUsage]:
    """The usage of these tenants, or of all that anybody knows, by name. O(live requests + tenants)."""
    live: dict[str, list[Answer]] = {}
    for answer in engine.answers():
        live.setdefault(answer.tenant, []).append(answer)
    cache: Any = engine.cache
    num_pinned_blocks = engine.prefixes.num_pinned_blocks() if cache.shares_prefixes else {}
    if tenants is None:
        in_cache = cache.tenants() if cache.shares_prefixes else []
        tenants = {*engine.ledger.tenants(), *live, *in_cache, *num_pinned_blocks}
    usages = []
    for tenant in sorted(tenants):
        usage = TenantUsage(tenant=tenant, **asdict(engine.ledger.totals(tenant)))
        of_tenant = live.get(tenant, [])
        usage.live_requests = len(of_tenant)
        for answer in of_tenant:
            usage.add(answer.usage())
        usage.num_pinned_blocks = num_pinned_blocks.get(tenant, 0)
        if cache.shares_prefixes:
            _add_holdings(usage, cache)
        else:  # then nothing is kept, and what lives is all there is
            usage.num_blocks = sum(answer.num_blocks for answer in of_tenant)
            usage.num_charged_blocks = usage.num_blocks
        usages.append(usage)
    return usages


def _add_holdings(usage: TenantUsage, cache: Any) -> None:
    try:
        account = cache.usage(usage.tenant)
    except UnknownTenantError:
        return  # it holds nothing
    usage.num_blocks = account.num_blocks
    usage.num_charged_blocks = account.num_charged_blocks
    usage.num_evicted_blocks = account.num_evicted_blocks
    usage.floor_blocks = account.floor_blocks
    usage.ceiling_blocks = account.ceiling_blocks
