"""Which requests are taken: the rates and the live requests of all tenants."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from prefixcache_worker.errors import RateLimitedError, TooManyRequestsError
from prefixcache_worker.server.access import Metadata
from prefixcache_worker.server.call_metadata import call_metadata
from prefixcache_worker.server.caller import Caller
from prefixcache_worker.server.request_record import RequestRecord
from prefixcache_worker.server.tenant_limits import TenantLimits
from prefixcache_worker.server.tenant_quotas import TenantQuotas

MIN_REMEMBERED_RATES = 1024
"""Tenants whose rate is remembered before those are forgotten that may send their whole burst again."""


class Admission:
    """Holds tenants to their limits. Both doors begin every request that computes with `request`.

    For one asyncio loop.
    """

    def __init__(self, quotas: TenantQuotas, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._quotas = quotas
        self._clock = clock
        self._num_live: Counter[str] = Counter()
        self._rested_at: dict[str, float] = {}
        """When the tenant may send its whole burst again: the generic cell rate algorithm of ITU-T I.371."""
        self._most_rested_at = MIN_REMEMBERED_RATES

    @asynccontextmanager
    async def request(
        self, caller: Caller, metadata: Metadata, *, method: str, request_id: str = ""
    ) -> AsyncIterator[RequestRecord]:
        """Around the whole life of a request, from before its prompt is read.

        `request_id` is the message's own; the record has the one to use: this, else the metadata's, else a
        new one. When the block is left, the log gets its line.
        Raises InvalidRequestError, RateLimitedError, and TooManyRequestsError; a request that is refused
        counts for nothing.
        """
        call = call_metadata(metadata)
        record = RequestRecord.begin(
            tenant=caller.tenant, method=method, request_id=request_id, call=call, clock=self._clock
        )
        with record.logged():
            self._take(caller.tenant, caller.limits)
            try:
                await self._quotas.keep_up(caller.tenant)
                yield record
            finally:
                self._give_back(caller.tenant)

    def num_live(self, tenant: str) -> int:
        """Its requests that were taken and have not ended."""
        return self._num_live[tenant]

    def _take(self, tenant: str, limits: TenantLimits) -> None:
        if limits.max_live_requests is not None and self._num_live[tenant] >= limits.max_live_requests:
            raise TooManyRequestsError(tenant=tenant, max_live_requests=limits.max_live_requests)
        if limits.requests_per_minute is not None:
            self._take_from_burst(tenant, limits.requests_per_minute, limits.burst_size)
        self._num_live[tenant] += 1

    def _take_from_burst(self, tenant: str, requests_per_minute: float, burst_size: float) -> None:
        now = self._clock()
        seconds_per_request = 60 / requests_per_minute
        rested_at = max(now, self._rested_at.get(tenant, now)) + seconds_per_request
        wait_seconds = rested_at - now - burst_size * seconds_per_request
        if wait_seconds > 1e-6:  # less is rounding
            raise RateLimitedError(
                tenant=tenant, requests_per_minute=requests_per_minute, retry_seconds=wait_seconds
            )
        self._rested_at[tenant] = rested_at
        if len(self._rested_at) > self._most_rested_at:
            self._rested_at = {name: at for name, at in self._rested_at.items() if at > now}
            self._most_rested_at = max(MIN_REMEMBERED_RATES, 2 * len(self._rested_at))

    def _give_back(self, tenant: str) -> None:
        self._num_live[tenant] -= 1
        if not self._num_live[tenant]:
            del self._num_live[tenant]
