"""Clients that hold connections and ask nothing."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from support.http_worker import http_served
from support.served_worker import DEADLINE_SECONDS
from support.tiny_loaded_model import loaded
from support.tiny_model import tiny_decoder

from prefixcache_worker.server.http import bounded_connection, listener

ASKS = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"
ASKS_WITH_A_BODY = ASKS + b"content-length: 1000000\r\n\r\n"


async def trickle(address: str, first: bytes, drop: bytes) -> bytes:
    """What comes back of a connection that sends a byte now and then, until the server ends it."""
    reader, writer = await asyncio.open_connection(*address.split(":"))
    writer.write(first)

    async def go_on() -> None:
        while True:
            writer.write(drop)
            await asyncio.sleep(0.02)

    going_on = asyncio.ensure_future(go_on())
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            received = b""
            while data := await reader.read(4096):
                received += data
            return received
    except ConnectionError:
        return received
    finally:
        going_on.cancel()
        writer.close()


@pytest.mark.parametrize(
    ("first", "drop", "is_answered"),
    [
        (b"", b"", False),
        (b"GET / HTTP/1.1\r\nx-slow: ", b"a", False),
        (b"", b"\r\n", False),
        (ASKS_WITH_A_BODY, b"a", True),
        (ASKS + b"\r\n", b"", True),
    ],
    ids=["silent", "slow head", "empty lines", "body that nobody reads", "idle"],
)
async def test_a_connection_without_a_request_ends(
    first: bytes, drop: bytes, is_answered: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bounded_connection, "IDLE_SECONDS", 0.3)
    monkeypatch.setattr(listener, "IDLE_SECONDS", 1000)  # uvicorn's own bound
    async with http_served(loaded(tiny_decoder())) as worker:
        received = await trickle(worker.address, first, drop)
        assert received.startswith(b"HTTP/1.1 200") == is_answered
        assert (await worker.client.get("/healthz")).status_code == 200


async def test_a_connection_that_asks_goes_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounded_connection, "IDLE_SECONDS", 0.3)
    async with http_served(loaded(tiny_decoder())) as worker:
        reader, writer = await asyncio.open_connection(*worker.address.split(":"))
        writer.write(2 * (ASKS + b"\r\n"))  # the second one waits for the first one's answer
        for _ in range(2):
            async with asyncio.timeout(DEADLINE_SECONDS):
                assert await reader.readuntil(b'{"status":"alive"}')
        answer = worker.chat(max_tokens=400, ignore_eos=True)
        assert (await answer).status_code == 200
        writer.close()


async def test_too_many_connections_leave_the_ones_before_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounded_connection, "max_connections", lambda: 3)
    async with http_served(loaded(tiny_decoder())) as worker:
        assert (await worker.client.get("/healthz")).status_code == 200
        held = [await asyncio.open_connection(*worker.address.split(":")) for _ in range(5)]
        async with asyncio.timeout(DEADLINE_SECONDS):
            for reader, _ in held[2:]:  # httpx has one of the three
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
        assert (await worker.client.get("/healthz")).status_code == 200
        for _, writer in held:
            writer.close()


POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-type: "


@pytest.mark.parametrize("content_type", [b"application/json", b"text/plain"], ids=["read", "not even read"])
@pytest.mark.parametrize("whole_chunks", [b"", b"1\r\n{\r\n"], ids=["at once", "then"])
@pytest.mark.parametrize("no_chunk", [b"zz\r\n", b"-1\r\n", b"\xff\xff\xff\r\n", b"5\r\nabcdefgh\r\n"])
@pytest.mark.parametrize("is_late", [False, True])
async def test_what_is_no_http_in_the_middle_of_a_body_is_refused_once(
    content_type: bytes, whole_chunks: bytes, no_chunk: bytes, is_late: bool, caplog: pytest.LogCaptureFixture
):
    async with http_served(loaded(tiny_decoder())) as worker:
        reader, writer = await asyncio.open_connection(*worker.address.split(":"))
        head = POST + content_type + b"\r\n\r\n" + whole_chunks
        if is_late:
            writer.write(head)
            await worker.client.get("/healthz")  # it is being answered meanwhile
            writer.write(no_chunk)
        else:
            writer.write(head + no_chunk)
        async with asyncio.timeout(DEADLINE_SECONDS):
            received = await reader.read()
        writer.close()
        assert (await worker.client.get("/healthz")).status_code == 200
    assert received.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 415 "))
    assert received.count(b"HTTP/1.1") == 1
    assert not [record for record in caplog.records if record.exc_info]
