"""The door and its port, as the service starts and stops them."""

from __future__ import annotations

from prefixcache_worker.server.access.access import Access
from prefixcache_worker.server.access.admission import Admission
from prefixcache_worker.server.build import Worker
from prefixcache_worker.server.http.door import Door
from prefixcache_worker.server.http.listener import HttpListener
from prefixcache_worker.server.large_requests import LargeRequests
from prefixcache_worker.server.tls import TlsIdentity


class HttpServer:
    """Use within one event loop, in this order: construct, start, begin_drain, stop."""

    def __init__(self, address: str) -> None:
        """Take the port. Raises ConfigError."""
        self._listener = HttpListener(address)
        self._door: Door | None = None

    @property
    def address(self) -> str:
        """HOST:PORT with the real port."""
        return self._listener.address

    async def start(
        self,
        worker: Worker,
        *,
        access: Access,
        admission: Admission,
        large_requests: LargeRequests,
        tls: TlsIdentity | None,
        flush_seconds: float,
    ) -> None:
        """Answer calls. `flush_seconds`: how long `stop` waits for answers that are on their way."""
        self._door = Door(
            engine_loop=worker.engine_loop,
            model=worker.model,
            access=access,
            admission=admission,
            large_requests=large_requests,
            metrics=worker.metrics,
            times=worker.times,
            event_feed=worker.event_feed,
        )
        ssl_context = None if tls is None else tls.ssl_context()
        await self._listener.start(self._door.app, flush_seconds=flush_seconds, ssl_context=ssl_context)

    def begin_drain(self) -> None:
        """Let /readyz say no."""
        if self._door is not None:
            self._door.begin_drain()

    async def stop(self) -> None:
        """Stop in good order. Requires: the engine gives no more answers."""
        await self._listener.stop()
