"""A TCP connection in two parts, so that a test can tear it like a client's machine that dies."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_SEND_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on, zero seconds: closing sends RST and drops what was not sent yet."""


class TcpRelay:
    """Passes bytes on between whoever connects to `address` and a server."""

    def __init__(self, host: str, port: int) -> None:
        self.address = ""
        self._host = host
        self._port = port
        self._to_server: list[asyncio.StreamWriter] = []
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def num_connections(self) -> int:
        """Connections that were made since the last reset."""
        return len(self._to_server)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
        self._to_server.append(server_writer)
        for source, target in ((reader, server_writer), (server_reader, writer)):
            self._pumps.add(asyncio.create_task(_pump(source, target)))

    def reset(self) -> None:
        """Break every connection to the server at once, without a goodbye of the protocol above."""
        for writer in self._to_server:
            if writer.transport.is_closing():
                continue
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _SEND_RESET)
            writer.transport.abort()
        self._to_server.clear()

    async def close(self) -> None:
        self.reset()
        await asyncio.gather(*self._pumps)


@asynccontextmanager
async def tcp_relay(address: str) -> AsyncIterator[TcpRelay]:
    """A relay to HOST:PORT on a free port of this machine."""
    host, _, port = address.rpartition(":")
    relay = TcpRelay(host, int(port))
    server = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
    relay.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield relay
    finally:
        server.close()
        await relay.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Carry bytes until either side ends, then end the other."""
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    except ConnectionError:
        pass  # the tear that the test asked for
    finally:
        target.close()
