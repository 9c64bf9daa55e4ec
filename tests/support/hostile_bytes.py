"""Bytes that no honest client sends, for either door of a worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS = bytes.fromhex("000000040000000000")
ANSWER_SECONDS = 0.2
"""How long the other side may say something before the connection is dropped."""


def hostile_bytes(pick: random.Random) -> bytes:
    """One thing to send over a fresh connection."""
    return pick.choice([_noise, _http2, _http1])(pick)


def hostile_body(pick: random.Random) -> bytes:
    """A body for a JSON call that is no right one: broken, of another shape, or far too much."""
    whole = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    ).encode()
    return pick.choice(
        [
            lambda: pick.randbytes(pick.randrange(200)),
            lambda: whole[: pick.randrange(len(whole))],
            lambda: _flipped(whole, pick),
            lambda: b"[" * pick.choice([10, 1_000, 200_000]),
            lambda: b'{"a":' * pick.choice([10, 1_000, 100_000]),
            lambda: b'{"messages": "' + b"x" * pick.choice([10, 100_000]) + b'"}',
            lambda: b'{"prompt": "\\ud800", "max_tokens": 1}',
            lambda: b'{"prompt": "\xff\xfe", "max_tokens": 1}',
            lambda: b'{"prompt": "a", "max_tokens": ' + b"9" * pick.choice([5, 400, 5_000]) + b"}",
            lambda: b'{"prompt": "a", "temperature": NaN}',
            lambda: b'{"prompt": "a", "temperature": -1e999}',
            lambda: b'{"prompt": "a", "prompt": [1], "prompt": null}',
            lambda: b'{"prompt": [' + b"1," * pick.choice([10, 100_000]) + b"1]}",
            lambda: b'{"prompt": [[[1]]], "n": 1e9, "stop": {"a": 1}}',
            lambda: b"null",
            lambda: b"",
        ]
    )()


async def send_and_drop(host: str, port: int, data: bytes, *, reset: bool) -> None:
    """Send the bytes, hear what comes of it for a moment, and break the connection off."""
    reader, writer = await asyncio.open_connection(host, port)
    with contextlib.suppress(ConnectionError, TimeoutError):
        writer.write(data)
        async with asyncio.timeout(ANSWER_SECONDS):
            await writer.drain()
            await reader.read(65536)
    if reset:
        writer.transport.abort()
    else:
        writer.close()


def _noise(pick: random.Random) -> bytes:
    return pick.randbytes(pick.choice([0, 1, 9, 200, 70_000]))


def _http2(pick: random.Random) -> bytes:
    """The beginning of a right connection, and then frames of all kinds with anything in them."""
    data = _PREFACE[: pick.choice([len(_PREFACE), pick.randrange(len(_PREFACE))])] + _SETTINGS
    for _ in range(pick.randrange(20)):
        payload = pick.randbytes(pick.choice([0, 4, 8, 100, 20_000]))
        length = pick.choice([len(payload), len(payload), pick.randrange(1 << 24)])
        kind, flags = pick.randrange(12), pick.randrange(256)
        stream = pick.choice([0, 1, 3, pick.randrange(1 << 31)])
        data += length.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    return data


def _http1(pick: random.Random) -> bytes:
    """Requests with a line, headers or a body that are wrong somewhere."""
    body = hostile_body(pick)
    line = pick.choice(
        [
            b"POST /v1/chat/completions HTTP/1.1",
            b"POST /v1/completions HTTP/1.1",
            b"GET /v1/models/" + b"%ff" * pick.choice([1, 5_000]) + b" HTTP/1.1",
            b"TRACE * HTTP/1.1",
            b"POST /v1/completions HTTP/9.9",
            b"\x00\x01\x02",
        ]
    )
    length = pick.choice([str(len(body)).encode(), b"-1", b"1e3", b"99999999999999999999", b"0x10"])
    headers = [b"Host: localhost", b"Content-Type: application/json", b"Content-Length: " + length]
    if pick.random() < 0.3:
        headers.append(b"Transfer-Encoding: chunked")
    if pick.random() < 0.3:
        headers.append(b"X-" + b"a" * pick.choice([10, 100_000]) + b": " + pick.randbytes(20).hex().encode())
    if pick.random() < 0.2:
        headers.append(b"Authorization: Bearer " + pick.randbytes(40))
    return b"\r\n".join([line, *headers, b"", body])


def _flipped(data: bytes, pick: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(pick.randrange(1, 4)):
        changed[pick.randrange(len(changed))] = pick.randrange(256)
    return bytes(changed)
