"""A connection that speaks just enough HTTP/2 to misbehave, or to behave, to the letter."""

from __future__ import annotations

import asyncio
import struct
from typing import NamedTuple, Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7
ACK = 1
ENHANCE_YOUR_CALM = 11


class Frame(NamedTuple):
    """One frame of HTTP/2."""

    kind: int
    flags: int
    payload: bytes

    @property
    def error_code(self) -> int:
        """Of a GOAWAY."""
        return int(struct.unpack(">I", self.payload[4:8])[0])


class RawHttp2:
    """A client without any calls."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: str) -> Self:
        host, _, port = address.rpartition(":")
        connection = cls(*await asyncio.open_connection(host, int(port)))
        connection._writer.write(PREFACE)
        connection._send(SETTINGS, 0, b"")
        return connection

    async def ping(self) -> Frame:
        """Send a PING; the frame that answers it, or a GOAWAY. Raises IncompleteReadError."""
        self._send(PING, 0, bytes(8))
        while True:
            frame = await self._receive()
            if frame.kind == SETTINGS and not frame.flags & ACK:
                self._send(SETTINGS, ACK, b"")
            elif frame.kind == GOAWAY or (frame.kind == PING and frame.flags & ACK):
                return frame

    def close(self) -> None:
        self._writer.close()

    def _send(self, kind: int, flags: int, payload: bytes) -> None:
        self._writer.write(struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + bytes(4) + payload)

    async def _receive(self) -> Frame:
        header = await self._reader.readexactly(9)
        length = int.from_bytes(header[:3], "big")
        return Frame(header[3], header[4], await self._reader.readexactly(length))
