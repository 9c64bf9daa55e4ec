"""Clients that misbehave at random against one worker, and a tally of how each of their calls ended.

Every call that the worker accepts must end exactly once, whoever ends it; a whole answer must be right.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from support.tcp_relay import TcpRelay, tcp_relay

from prefixcache.v1 import inference_pb2, inference_pb2_grpc

PATIENCE_SECONDS = 60.0
"""A call that has not ended by then hangs."""
NUM_PREFIXES = 4
PREFIX_TOKENS = 48
MAX_TOKENS = 40
CALLERS_CODES = {grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}
"""How a call may end for a client that left, ran out of time, or lost its connection."""
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


def bearer(key: str | None) -> list[tuple[str, str]]:
    """Metadata of a caller with a key, or without one."""
    return [] if key is None else [("authorization", f"Bearer {key}")]


@dataclass(slots=True)
class Tally:
    """What came of the calls of a storm."""

    endings: Counter[str] = field(default_factory=Counter)
    """By attack and how it ended."""
    answers: dict[bytes, object] = field(default_factory=dict)
    """The whole answer to each greedy request, which is the same each time."""

    def note_answer(self, request: bytes, answer: object) -> None:
        """Compare with what the same request was answered before."""
        known = self.answers.setdefault(request, answer)
        assert known == answer, f"{request!r} is answered with {answer!r}, and was with {known!r}"


class GrpcStorm:
    """Random calls of `Generate` that end early, late or not at all by the client's doing."""

    def __init__(
        self,
        address: str,
        *,
        seed: int,
        vocabulary_size: int,
        tally: Tally,
        keys: Sequence[str | None] = (None,),
    ) -> None:
        self._address = address
        self._random = random.Random(seed)
        self._vocabulary_size = vocabulary_size
        self._tally = tally
        self._keys = keys
        self._channels: list[grpc.aio.Channel] = []

    @asynccontextmanager
    async def connected(self, num_channels: int = 4) -> AsyncIterator[Self]:
        """Attacks are made over so many connections, and some over one of their own."""
        async with AsyncExitStack() as stack:
            self._channels = [
                await stack.enter_async_context(grpc.aio.insecure_channel(self._address, OWN_CONNECTION))
                for _ in range(num_channels)
            ]
            yield self

    async def attack(self) -> None:
        """Make one call, and note how it ended. Requires: connected."""
        stub = inference_pb2_grpc.InferenceServiceStub(self._random.choice(self._channels))
        attacks: list[Callable[[inference_pb2_grpc.InferenceServiceStub], Awaitable[str]]] = [
            self._cancel,
            self._run_out_of_time,
            self._vanish,
            self._stay,
        ]
        attack = self._random.choices(attacks, weights=[10, 6, 1, 3])[0]
        async with asyncio.timeout(PATIENCE_SECONDS):
            ending = await attack(stub)
        self._tally.endings[f"grpc {attack.__name__.removeprefix('_')}: {ending}"] += 1

    async def _cancel(self, stub: inference_pb2_grpc.InferenceServiceStub) -> str:
        """Cancel after a few messages, or a few turns of the event loop."""
        call = stub.Generate(self._message(), **self._caller())
        if self._random.random() < 0.5:
            for _ in range(self._random.randrange(20)):
                await asyncio.sleep(0)
        else:
            with contextlib.suppress(grpc.aio.AioRpcError):
                for _ in range(self._random.randrange(6)):
                    if await call.read() is grpc.aio.EOF:
                        break
        call.cancel()
        return self._left(await call.code())

    async def _run_out_of_time(self, stub: inference_pb2_grpc.InferenceServiceStub) -> str:
        call = stub.Generate(self._message(), **self._caller(self._random.uniform(0.0005, 0.15)))
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for _ in call:
                pass
        return self._left(await call.code())

    async def _vanish(self, _: inference_pb2_grpc.InferenceServiceStub) -> str:
        """Die in the middle: the connection breaks without a goodbye."""
        async with (
            tcp_relay(self._address) as relay,
            grpc.aio.insecure_channel(relay.address, OWN_CONNECTION) as channel,
        ):
            return await self._break(relay, channel)

    async def _break(self, relay: TcpRelay, channel: grpc.aio.Channel) -> str:
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(self._message(), **self._caller())
        with contextlib.suppress(grpc.aio.AioRpcError):
            for _ in range(self._random.randrange(1, 4)):
                await call.read()
        relay.reset()
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:  # what had arrived; the status is behind it
                pass
        return self._left(await call.code())

    async def _stay(self, stub: inference_pb2_grpc.InferenceServiceStub) -> str:
        """Read all of it, and look at every number."""
        message = self._message()
        call = stub.Generate(message, **self._caller())
        token_ids: list[int] = []
        num_completions = 0
        try:
            async for response in call:
                assert not num_completions, "a message after the completion"
                token_ids += response.delta.token_ids
                if response.HasField("completion"):
                    num_completions += 1
                    usage = response.completion.usage
                    assert usage.prompt_tokens == len(message.token_ids.ids)
                    assert usage.cached_tokens + usage.computed_tokens == usage.prompt_tokens
                    assert usage.completion_tokens == len(token_ids)
        except grpc.aio.AioRpcError:
            return self._refused(await call.code(), num_completions)
        assert num_completions == 1, "a stream without its completion"
        if message.n == 1:
            self._tally.note_answer(message.SerializeToString(deterministic=True), tuple(token_ids))
        return "answered"

    def _caller(self, timeout_seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """Arguments of a call."""
        return {"timeout": timeout_seconds, "metadata": bearer(self._random.choice(self._keys))}

    def _refused(self, code: grpc.StatusCode, num_completions: int) -> str:
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, code
        assert not num_completions, "an error after the completion"
        return "refused"

    def _left(self, code: grpc.StatusCode) -> str:
        """How a call ended whose client did not wait for the end."""
        if code is grpc.StatusCode.OK:
            return "answered"
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return "refused"
        assert code in CALLERS_CODES, code
        return "left"

    def _message(self) -> inference_pb2.GenerateRequest:
        """A greedy request: one of a few prefixes, cut somewhere, and a few tokens of its own."""
        pick = self._random
        first = 3 + pick.randrange(NUM_PREFIXES)
        prefix = [first + i * 7 % (self._vocabulary_size - 20) for i in range(pick.randrange(PREFIX_TOKENS))]
        suffix = [pick.randrange(3, 11) for _ in range(pick.randrange(1, 4))]
        return inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(ids=[*prefix, *suffix]),
            sampling=inference_pb2.SamplingParams(temperature=0),
            stop_conditions=inference_pb2.StopConditions(
                max_tokens=pick.randrange(1, MAX_TOKENS), ignore_eos=True
            ),
            n=pick.choice([1, 1, 1, 3]),
        )
