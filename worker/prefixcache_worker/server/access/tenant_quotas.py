"""From the tenants' limits to the quotas of the cache."""

from __future__ import annotations

import logging
from collections.abc import Callable

from prefixcache import PrefixCache, TenantQuota
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.server.access.tenant_limits import NO_LIMITS, TenantTable

NO_QUOTA = TenantQuota()

logger = logging.getLogger(__name__)


class TenantQuotas:
    """Keeps the cache's quotas what the limits say; nobody else sets them. For one asyncio loop."""

    def __init__(
        self,
        engine_loop: EngineLoop,
        *,
        num_blocks: int,
        tenants: Callable[[], TenantTable] = NO_LIMITS.itself,
    ) -> None:
        """`num_blocks` is the pool's; `tenants` tells the limits now: one object until they change."""
        self._engine_loop = engine_loop
        self._num_blocks = num_blocks
        self._shares_prefixes = True
        self._tenants = tenants
        self._seen = self._table = NO_LIMITS
        """The limits of now, and those that the quotas follow: the last ones that the pool could hold."""
        self._quota_by_tenant: dict[str, TenantQuota] = {}
        """What the cache has of tenants with limits of their own."""

    async def start(self) -> None:
        """Set the quotas of all tenants that the file names. Requires: the engine loop has started.

        Raises ConfigError when the cache cannot hold what they promise.
        """
        self._shares_prefixes = await self._engine_loop.call(lambda engine: engine.cache.shares_prefixes)
        self._seen = self._tenants()
        self._check(self._seen)
        self._table = self._seen
        await self._set_all()

    async def keep_up(self) -> None:
        """Let the next request meet the quotas of now. Almost always O(1), without waiting."""
        table = self._tenants()
        if table is self._seen:
            return
        self._seen = table
        try:
            self._check(table)
        except ConfigError as error:
            logger.warning("the cache keeps its former quotas: %s", error)
        else:
            self._table = table
            await self._set_all()

    def _check(self, table: TenantTable) -> None:
        quotas = [limits.quota for limits in (table.default, *table.limits_by_tenant.values())]
        if not self._shares_prefixes and any(quota != NO_QUOTA for quota in quotas):
            raise ConfigError("--tenants: floor_blocks and ceiling_blocks need --scheme shared")
        num_floor_blocks = sum(quota.floor_blocks for quota in quotas)
        if num_floor_blocks > self._num_blocks:
            raise ConfigError(
                f"--tenants: the floors sum to {num_floor_blocks} blocks, and the pool has "
                f"{self._num_blocks}; lower them, or give more --kv-memory"
            )

    async def _set_all(self) -> None:
        if not self._shares_prefixes:
            return  # then nothing bounds anything
        before = self._quota_by_tenant
        default = self._table.default.quota
        self._quota_by_tenant = {name: limits.quota for name, limits in self._table.limits_by_tenant.items()}
        quotas: dict[str, TenantQuota | None] = dict.fromkeys(before) | self._quota_by_tenant
        # Those whose floor sinks come first: so the sum of the floors is within the pool all the time.
        in_order = sorted(
            quotas.items(),
            key=lambda item: (item[1] or default).floor_blocks - before.get(item[0], default).floor_blocks,
        )
        await self._engine_loop.call(lambda engine: _set_in_cache(engine, default, in_order))


def _set_in_cache(engine: Engine, default: TenantQuota, quotas: list[tuple[str, TenantQuota | None]]) -> None:
    assert isinstance(engine.cache, PrefixCache)
    engine.cache.set_default_quota(default)
    for tenant, quota in quotas:
        engine.cache.set_quota(tenant, quota)
