"""One HTTP/1.1 call over a connection of its own, which a test can read as slowly as it likes, or break."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import h11


class HttpAnswer(NamedTuple):
    """A whole answer."""

    status: int
    body: bytes

    @property
    def error_code(self) -> str:
        """`error.code` of a refusal."""
        return str(json.loads(self.body)["error"]["code"])


class RawHttp:
    """The client's end of one call."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, path: str, body: bytes, *, key: str | None = None, part: float = 1.0) -> None:
        """Send a POST, or the first part of its bytes."""
        lines = [
            f"POST {path} HTTP/1.1",
            "host: localhost",
            "connection: close",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *([] if key is None else [f"authorization: Bearer {key}"]),
        ]
        data = "\r\n".join([*lines, "", ""]).encode() + body
        self.writer.write(data[: round(part * len(data))])

    async def answer(self) -> HttpAnswer:
        """Read to the end. Raises what shows a broken answer:
        ConnectionError or h11.RemoteProtocolError."""
        connection = h11.Connection(h11.CLIENT)
        connection.send(
            h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")])
        )
        connection.send(h11.EndOfMessage())
        status, body = 0, bytearray()
        while True:
            match connection.next_event():
                case h11.NEED_DATA:
                    connection.receive_data(await self.reader.read(65536))
                case h11.Response(status_code=status_code):
                    status = status_code
                case h11.Data(data=data):
                    body += data
                case h11.EndOfMessage():
                    return HttpAnswer(status, bytes(body))


@asynccontextmanager
async def raw_http(address: str, *, receive_buffer_bytes: int | None = None) -> AsyncIterator[RawHttp]:
    """A connection to HOST:PORT, broken off at the end. `receive_buffer_bytes`: what the system takes of an
    answer that is not read."""
    host, _, port = address.rpartition(":")
    client = socket.socket()
    try:
        if receive_buffer_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=client, limit=4096)
    except BaseException:
        client.close()
        raise
    try:
        yield RawHttp(reader, writer)
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def post_body(fields: Mapping[str, Any]) -> bytes:
    """A JSON body, the same bytes for the same fields."""
    return json.dumps(fields, sort_keys=True).encode()
