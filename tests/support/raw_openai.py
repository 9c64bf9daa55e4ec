"""An OpenAI-compatible server that is told byte by byte what to answer, inside the test's loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
MODELS = b'{"data": [{"id": "raw"}]}'


def event(data: bytes) -> bytes:
    """A server-sent event in a chunk of its own."""
    return chunk(b"data: " + data + b"\n\n")


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


def text_event(text: str) -> bytes:
    return event(json.dumps({"choices": [{"index": 0, "text": text}]}).encode())


def whole(content: bytes, *, status: int = 200, content_type: str = "application/json") -> bytes:
    """A whole answer of HTTP."""
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


@asynccontextmanager
async def raw_openai(answer: bytes | Answer, *, models: bytes = MODELS) -> AsyncIterator[str]:
    """Its URL. Every POST gets `answer`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                for line in head.split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        await reader.readexactly(int(line.split(b":")[1]))
                if head.startswith(b"get"):
                    writer.write(whole(models))
                elif isinstance(answer, bytes):
                    writer.write(answer)
                else:
                    await answer(writer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield "http://{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()
