"""The gRPC server: start, serve, and a stop that loses nothing."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from prefixcache.v1 import cache_pb2, cache_pb2_grpc, inference_pb2, inference_pb2_grpc
from prefixcache_worker.errors import ConfigError, EngineStoppedError
from prefixcache_worker.server.access.access_settings import AccessSettings
from prefixcache_worker.server.access.admission import Admission
from prefixcache_worker.server.access.refused_credentials import WatchedAccess
from prefixcache_worker.server.access.tenant_quotas import TenantQuotas
from prefixcache_worker.server.build import Worker
from prefixcache_worker.server.grpc.cache_servicer import CacheServicer
from prefixcache_worker.server.grpc.connections import ConnectionAge, server_options
from prefixcache_worker.server.grpc.guarded_reflection import GuardedReflection
from prefixcache_worker.server.grpc.inference_servicer import InferenceServicer
from prefixcache_worker.server.grpc.request_intake import RequestIntake
from prefixcache_worker.server.large_requests import LargeRequests
from prefixcache_worker.server.tls import TlsIdentity
from prefixcache_worker.server_address import split_address

if TYPE_CHECKING:
    from prefixcache_worker.server.http.http_server import HttpServer

FLUSH_SECONDS = 2.0
"""How long finished answers may still be on their way to their readers after the engine stopped."""

SERVICE_NAMES = (
    inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name,
    cache_pb2.DESCRIPTOR.services_by_name["CacheService"].full_name,
)

logger = logging.getLogger(__name__)


class Service:
    """One worker behind one port. Use within one event loop: bind, start, stop, in this order."""

    def __init__(
        self,
        *,
        callers: AccessSettings | None = None,
        tls: TlsIdentity | None = None,
        connection_age: ConnectionAge | None = None,
    ) -> None:
        """Without `callers`, everybody may call, without limits; without `tls`, nothing is encrypted; without
        `connection_age`, connections grow as old as they like."""
        callers = callers or AccessSettings()
        self._access = callers.access
        self._tenants = callers.tenants
        self._tls = tls
        self._large_requests = LargeRequests()
        self._server = grpc.aio.server(
            interceptors=[RequestIntake(self._large_requests)], options=server_options(connection_age)
        )
        self._health = health_aio.HealthServicer()
        self._worker: Worker | None = None
        self._http: HttpServer | None = None

    def bind(self, address: str) -> str:
        """Take the port, so that a busy one is known before a model is loaded.

        Returns HOST:PORT with the real port. Raises ConfigError.
        """
        try:
            if self._tls is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, self._tls.grpc_credentials())
        except RuntimeError as error:
            raise ConfigError(
                f"--address: cannot listen on {address}: another program uses the port, or the host is "
                "none of this machine; choose another address"
            ) from error
        return f"{split_address(address)[0]}:{port}"

    def bind_http(self, address: str) -> str:
        """The same for the OpenAI-compatible door, which there is only then."""
        # Only here: who wants no such door need not have its libraries.
        try:
            from prefixcache_worker.server.http.http_server import HttpServer
        except ImportError as error:
            raise ConfigError(
                f"--http-address: needs a package that is not installed ({error.name}); install "
                "prefixcache[openai]"
            ) from error

        self._http = HttpServer(address)
        return self._http.address

    async def start(self, worker: Worker) -> None:
        """Start the engine and answer calls. Requires: bound, not started before.

        Raises ConfigError when the cache cannot hold what the tenants' limits promise.
        """
        self._worker = worker
        worker.engine_loop.start()
        quotas = TenantQuotas(worker.engine_loop, num_blocks=worker.model.num_blocks, tenants=self._tenants)
        try:
            await quotas.start()
        except ConfigError:
            await worker.engine_loop.stop(drain_seconds=0)
            raise
        admission = Admission(quotas, count=worker.metrics.count_answer, tracer=worker.traces)
        access = WatchedAccess(self._access, count=worker.metrics.count_refused_credential)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(
            InferenceServicer(
                engine_loop=worker.engine_loop,
                model=worker.model,
                access=access,
                admission=admission,
            ),
            self._server,
        )
        cache_pb2_grpc.add_CacheServiceServicer_to_server(
            CacheServicer(
                engine_loop=worker.engine_loop,
                model=worker.model,
                access=access,
                admission=admission,
                prefix_ttl=worker.prefix_ttl,
                snapshots=worker.snapshots,
                event_feed=worker.event_feed,
            ),
            self._server,
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflected = (*SERVICE_NAMES, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
            GuardedReflection((*reflected, reflection.SERVICE_NAME), access), self._server
        )
        if worker.snapshots is not None:
            worker.snapshots.start()
        await self._server.start()
        if self._http is not None:
            await self._http.start(
                worker,
                access=access,
                admission=admission,
                large_requests=self._large_requests,
                tls=self._tls,
                flush_seconds=FLUSH_SECONDS,
            )
        for name in SERVICE_NAMES:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, *, drain_seconds: float) -> None:
        """Stop in good order; takes `drain_seconds`, one engine step, what the last snapshot may take, and
        twice FLUSH_SECONDS at most: for answers, and for traces.

        Health turns NOT_SERVING, new requests get UNAVAILABLE, and running ones may finish; what still
        runs after `drain_seconds` gets UNAVAILABLE too.
        """
        await self._health.enter_graceful_shutdown()
        if self._http is not None:
            self._http.begin_drain()
        if self._worker is not None:
            await self._worker.engine_loop.stop(drain_seconds=drain_seconds)
            if self._worker.snapshots is not None and not self._worker.engine_loop.is_broken:
                await self._worker.snapshots.stop()
            if self._worker.event_feed is not None:
                self._worker.event_feed.close()
        await asyncio.gather(self._server.stop(FLUSH_SECONDS), *([self._http.stop()] if self._http else []))
        if self._worker is not None and self._worker.traces is not None:
            await self._worker.traces.stop(seconds=FLUSH_SECONDS)


async def serve_until_signal(
    address: str,
    *,
    callers: AccessSettings,
    http_address: str | None = None,
    tls: TlsIdentity | None = None,
    connection_age: ConnectionAge | None = None,
    build: Callable[[], Worker],
    drain_seconds: float,
    audit: bool = False,
    announce: Callable[[str, str | None, Worker], None],
) -> None:
    """Bind, build, serve until SIGTERM or SIGINT, then drain until all has ended or a second signal comes.

    Signals mean what they meant to the caller until the worker is built. `announce` hears the real addresses
    once the worker is ready. With `audit`, the engine is checked at the end. Raises ConfigError,
    EngineStoppedError when the engine broke (whoever watches the process should start a new one), and
    AuditError.
    """
    service = Service(callers=callers, tls=tls, connection_age=connection_age)
    bound_address = service.bind(address)
    bound_http_address = service.bind_http(http_address) if http_address is not None else None
    # Blocks, but nobody is served yet. In a thread that ends: OpenMP keeps a team for every thread that has
    # computed, and when there are more of them than cores, none waits actively any more, which doubles
    # the time of a small step.
    with ThreadPoolExecutor(1) as thread:
        worker = thread.submit(build).result()
    signals = asyncio.Semaphore(0)  # a permit for each that came
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.release)
    await service.start(worker)
    announce(bound_address, bound_http_address, worker)
    broken = asyncio.ensure_future(worker.engine_loop.wait_broken())
    asked = asyncio.ensure_future(signals.acquire())
    await asyncio.wait([asked, broken], return_when=asyncio.FIRST_COMPLETED)
    if asked.done():
        logger.info(
            "stopping: requests that still run have %g seconds to finish; a second signal stops at once",
            drain_seconds,
        )
    stopped = asyncio.ensure_future(service.stop(drain_seconds=drain_seconds))
    asked_again = asyncio.ensure_future(signals.acquire())
    await asyncio.wait([stopped, asked_again], return_when=asyncio.FIRST_COMPLETED)
    if not stopped.done():
        logger.info("stopping at once")
        if worker.snapshots is not None:
            worker.snapshots.hurry(0)
        await worker.engine_loop.stop(drain_seconds=0)  # gives up what the first stop waits for
    await stopped
    if broken.done():
        raise EngineStoppedError("the engine broke, see the log; start the worker again")
    if audit:
        worker.engine_loop.audit()
