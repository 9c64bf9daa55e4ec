"""Which requests are taken: the rates and the live requests of all tenants."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from prefixcache_worker.errors import RateLimitedError, TooManyRequestsError
from prefixcache_worker.server.access.access import Metadata
from prefixcache_worker.server.access.caller import Caller
from prefixcache_worker.server.access.tenant_limits import TenantLimits
from prefixcache_worker.server.access.tenant_quotas import TenantQuotas
from prefixcache_worker.server.call_metadata import call_metadata
from prefixcache_worker.server.request_record import RequestRecord, RequestTracer

MIN_REMEMBERED_BURSTS = 1024
"""When there are more, those of tenants that have rested are forgotten."""


class Burst(NamedTuple):
    """How much of its burst a tenant had used up when it last sent a request: a token bucket, upside down."""

    num_used: float
    at: float
    requests_per_second: float
    """It is given back as fast as this."""

    def num_used_at(self, now: float, requests_per_second: float) -> float:
        """What is left of it, at the rate of now."""
        return max(0.0, self.num_used - (now - self.at) * requests_per_second)

    def has_rested(self, now: float) -> bool:
        return self.num_used_at(now, self.requests_per_second) == 0


class Admission:
    """Holds tenants to their limits. Both doors begin every request that computes with `request`.

    For one asyncio loop.
    """

    def __init__(
        self,
        quotas: TenantQuotas,
        *,
        clock: Callable[[], float] = time.monotonic,
        count: Callable[[str, str], None] = lambda method, code: None,
        tracer: RequestTracer | None = None,
    ) -> None:
        """`count` hears the method and the status code of every request that has ended, refused ones too, and
        `tracer` all that is known of it."""
        self._quotas = quotas
        self._count = count
        self._tracer = tracer
        self._clock = clock
        self._num_live: Counter[str] = Counter()
        self._bursts: dict[str, Burst] = {}
        """Of tenants that have a rate; who is not here has rested."""
        self._most_bursts = MIN_REMEMBERED_BURSTS

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
            tenant=caller.tenant,
            method=method,
            request_id=request_id,
            call=call,
            clock=self._clock,
            count=self._count,
            tracer=self._tracer,
        )
        with record.logged():
            self._take(caller.tenant, caller.limits)
            try:
                await self._quotas.keep_up()
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
        now, requests_per_second = self._clock(), requests_per_minute / 60
        burst = self._bursts.get(tenant)
        num_used = 0.0 if burst is None else burst.num_used_at(now, requests_per_second)
        num_used = min(num_used, burst_size)  # the burst may have been larger then
        num_missing = num_used + 1 - burst_size
        if num_missing > 1e-6:  # less is rounding
            raise RateLimitedError(
                tenant=tenant,
                requests_per_minute=requests_per_minute,
                retry_seconds=num_missing / requests_per_second,
            )
        self._bursts[tenant] = Burst(num_used + 1, now, requests_per_second)
        if len(self._bursts) > self._most_bursts:
            self._bursts = {name: burst for name, burst in self._bursts.items() if not burst.has_rested(now)}
            self._most_bursts = max(MIN_REMEMBERED_BURSTS, 2 * len(self._bursts))

    def _give_back(self, tenant: str) -> None:
        self._num_live[tenant] -= 1
        if not self._num_live[tenant]:
            del self._num_live[tenant]
