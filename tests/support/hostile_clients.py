"""Clients that send what no honest one does, to both doors; each answer has to be a refusal, in good form."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Sequence

import grpc
import h11
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from support.fault_storm import OWN_CONNECTION, PATIENCE_SECONDS, Tally, bearer
from support.fuzzed_service import DOCUMENTED, calls, is_message, status_of
from support.hostile_bytes import hostile_body, hostile_bytes, send_and_drop
from support.http_storm import CHAT, TEXT
from support.raw_http import raw_http

WRONG_KEYS = ("", "pc_0123456789ab_" + "A" * 43, "pc_", "Bearer", "x" * 4000)
MAX_MESSAGES, MAX_MESSAGE_BYTES = 400, 100_000
"""What is kept at once to be sent: drawn messages have up to tens of megabytes, which add up."""
HUGE_METADATA_BYTES = 20_000
HUGE_MESSAGE_BYTES = 17 << 20


class HostileClients:
    """Noise, broken messages, wrong calls and wrong keys. Use within `connected`."""

    def __init__(
        self,
        address: str,
        http_address: str,
        *,
        seed: int,
        num_messages: int,
        tally: Tally,
        keys: Sequence[str | None] = (None,),
    ) -> None:
        """With keys that are none (None), no key is wrong."""
        self._address = address
        self._http_address = http_address
        self._random = random.Random(seed)
        self._messages = hostile_messages(min(num_messages, MAX_MESSAGES), seed)
        self._tally = tally
        self._keys = keys

    async def attack(self) -> None:
        """Send one thing, and note what came of it."""
        attacks = [self._bytes, self._http_body, self._message, self._wrong_method, self._huge]
        weights = [5, 5, 8, 1, 1]
        if None not in self._keys:
            attacks.append(self._wrong_key)
            weights.append(2)
        attack = self._random.choices(attacks, weights)[0]
        async with asyncio.timeout(PATIENCE_SECONDS):
            ending = await attack()
        self._tally.endings[f"hostile {attack.__name__.removeprefix('_')}: {ending}"] += 1

    async def _bytes(self) -> str:
        """Anything, over a connection of its own."""
        host, _, port = self._random.choice([self._address, self._http_address]).rpartition(":")
        await send_and_drop(host, int(port), hostile_bytes(self._random), reset=self._random.random() < 0.5)
        return "dropped"

    async def _http_body(self) -> str:
        path = self._random.choice([CHAT, TEXT])
        return await self._post(path, hostile_body(self._random), key=self._random.choice(self._keys))

    async def _message(self) -> str:
        method, data = self._random.choice(self._messages)
        code = await self._call(method, data, bearer(self._random.choice(self._keys)))
        assert code in DOCUMENTED, (method.name, code, data)
        assert is_message(method, data) or code in _REFUSALS, (method.name, code, data)
        return code.name

    async def _wrong_method(self) -> str:
        path = self._random.choice(
            ["/", "/prefixcache.v1.InferenceService/No", "/x/y", "//", "/" + "z" * 4000]
        )
        async with grpc.aio.insecure_channel(self._address, OWN_CONNECTION) as channel:
            with contextlib.suppress(grpc.aio.AioRpcError):
                call = channel.unary_unary(path)(b"", timeout=PATIENCE_SECONDS)
                await call
        code = await call.code()
        assert code is grpc.StatusCode.UNIMPLEMENTED, code
        return code.name

    async def _huge(self) -> str:
        """Metadata, or a message, of more than the worker takes."""
        method, data = self._messages[0]
        metadata = bearer(self._random.choice(self._keys))
        if self._random.random() < 0.8:
            metadata = [*metadata, ("x-request-id", "x" * HUGE_METADATA_BYTES)]
        else:
            data = bytes(HUGE_MESSAGE_BYTES)
        code = await self._call(method, data, metadata)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, code
        return code.name

    async def _wrong_key(self) -> str:
        key = self._random.choice(WRONG_KEYS)
        if self._random.random() < 0.5:
            return await self._post(TEXT, b"{}", key=key, expected=401)
        method, data = self._random.choice(self._messages)
        code = await self._call(method, data, bearer(key))
        assert code in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT}, (
            method.name,
            code,
        )
        return code.name

    async def _call(
        self, method: MethodDescriptor, data: bytes, metadata: list[tuple[str, str]]
    ) -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(self._address, OWN_CONNECTION) as channel:
            return await status_of(channel, method, data, metadata=metadata, timeout=PATIENCE_SECONDS)

    async def _post(self, path: str, body: bytes, *, key: str | None, expected: int | None = None) -> str:
        async with raw_http(self._http_address) as http:
            http.send(path, body, key=key)
            try:
                answer = await http.answer()
            except (ConnectionError, h11.RemoteProtocolError):
                return "dropped"
        assert answer.status == expected or (expected is None and 400 <= answer.status < 500), answer
        assert set(json.loads(answer.body)) == {"error"}
        return str(answer.status)


_REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""How bytes that are no message may be answered."""


def hostile_messages(count: int, seed: int) -> list[tuple[MethodDescriptor, bytes]]:
    """About so many methods with what they are sent, the same for the same seed."""
    found: list[tuple[MethodDescriptor, bytes]] = []

    @hypothesis_seed(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(calls())
    def collect(call: tuple[MethodDescriptor, bytes]) -> None:
        if len(call[1]) <= MAX_MESSAGE_BYTES:
            found.append(call)

    collect()
    return found
