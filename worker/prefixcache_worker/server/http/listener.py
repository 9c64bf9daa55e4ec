"""The HTTP server around the door: a port that is taken early, and a stop in good order."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl

import uvicorn
from starlette.types import ASGIApp

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.server.http.bounded_connection import IDLE_SECONDS, BoundedConnection
from prefixcache_worker.server_address import split_address

SEND_BUFFER_BYTES = 1 << 17
"""What the system may hold of an answer that is not read. By itself it would take megabytes, and the engine
would go on computing for a reader that has stopped."""


class HttpListener:
    """One port. Use within one event loop: construct, start, stop, in this order."""

    def __init__(self, address: str) -> None:
        """Take the port; who connects before `start` waits. Raises ConfigError."""
        host, port = split_address(address)
        self._socket = _bound_socket(address, host.strip("[]"), port)
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        """HOST:PORT with the real port."""
        self._server: uvicorn.Server | None = None
        self._ticking: asyncio.Task[None] | None = None

    async def start(self, app: ASGIApp, *, flush_seconds: float, ssl_context: ssl.SSLContext | None) -> None:
        """Answer calls. `flush_seconds`: how long `stop` waits for answers that are on their way."""
        config = uvicorn.Config(
            app,
            http=BoundedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.ERROR,  # below are words about clients' mistakes, as many as they like
            access_log=False,
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=max(1, round(flush_seconds)),
        )
        config.load()
        config.ssl = ssl_context
        server = uvicorn.Server(config)
        # `Server.serve` would do the same and take the process's signals, which are not its to take.
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[self._socket])
        self._server = server
        self._ticking = asyncio.create_task(server.main_loop())

    async def stop(self) -> None:
        """Take no more connections, let answers end for `flush_seconds`, then cut them off."""
        if self._server is None or self._ticking is None:
            self._socket.close()
            return
        self._server.should_exit = True
        await self._ticking
        await self._server.shutdown(sockets=[self._socket])


def _bound_socket(address: str, host: str, port: int) -> socket.socket:
    bound: socket.socket | None = None
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # accepted ones inherit it
        bound.bind(place)
        bound.listen()  # only then does a second program that takes the port fail
    except OSError as error:
        if bound is not None:
            bound.close()
        raise ConfigError(
            f"--http-address: cannot listen on {address}: another program uses the port, or the host is "
            "none of this machine; choose another address"
        ) from error
    bound.setblocking(False)
    return bound
