"""A worker that is sent whatever comes to mind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.hostile_messages import wire_bytes
from support.named_callers import ADMIN, as_caller, served_to_named
from support.rpc_methods import METHODS
from support.served_worker import ServedWorker
from support.tiny_loaded_model import loaded

from prefixcache.v1 import cache_pb2
from prefixcache_worker.model.scripted_model import ScriptedModel
from prefixcache_worker.server.access.caller import Role
from prefixcache_worker.server.status import STATUS_BY_ERROR

OUR_FAULT = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
DOCUMENTED = {grpc.StatusCode.OK, *(row.code for row in STATUS_BY_ERROR.values())} - OUR_FAULT
_MAX_MESSAGES = 3
"""Of an endless stream."""
_SLOW = {"WatchSteps", "ProfileSteps", "MeasureMachine"}
"""Calls that wait for steps, or take a while; each of their fields has a test of its bounds."""


class FuzzedService:
    """Sends bytes to one worker, from one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, worker: ServedWorker) -> None:
        self._loop = loop
        self._worker = worker
        self.num_answers: Counter[grpc.StatusCode] = Counter()

    def send(self, method: MethodDescriptor, data: bytes, role: Role) -> None:
        """Requires of the answer that it has a status that is documented, and of the worker that it lives."""
        answered = status_of(self._worker.channel, method, data, **as_caller("hostile", role))
        code = self._loop.run_until_complete(answered)
        self.num_answers[code] += 1
        if is_message(method, data):
            assert code in DOCUMENTED, code
        else:
            assert code in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED}, code

    def check(self) -> None:
        """Requires that nothing is left of all requests."""
        self._loop.run_until_complete(self._check())

    async def _check(self) -> None:
        stats = await self._worker.cache.GetStats(cache_pb2.GetStatsRequest(), **ADMIN)
        assert (stats.blocks.live, stats.requests.running, stats.requests.waiting) == (0, 0, 0)
        await self._worker.worker.engine_loop.call(lambda engine: engine.check())


def is_message(method: MethodDescriptor, data: bytes) -> bool:
    """Whether the bytes can be read as what the method takes."""
    try:
        GetMessageClass(method.input_type).FromString(data)
    except DecodeError:
        return False
    return True


async def status_of(
    channel: grpc.aio.Channel, method: MethodDescriptor, data: bytes, **caller: Any
) -> grpc.StatusCode:
    """How a call with these bytes ends; an endless one is left when it has told its state."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    stub = channel.unary_stream if method.server_streaming else channel.unary_unary
    call = stub(path, response_deserializer=GetMessageClass(method.output_type).FromString)(data, **caller)
    try:
        if not method.server_streaming:
            await call
        elif method.name == "WatchEvents":
            await _read_some(call)
            return grpc.StatusCode.OK
        else:
            async for _ in call:
                pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await call.code()


async def _read_some(call: grpc.aio.UnaryStreamCall) -> None:
    """Its state, and then nothing, for nothing happens meanwhile."""
    for _ in range(_MAX_MESSAGES):
        message = await call.read()
        if message is grpc.aio.EOF or message.WhichOneof("event") == "state_complete":
            break
    if call.done():
        await call  # raises its error
    call.cancel()


@contextmanager
def fuzzed_service() -> Iterator[FuzzedService]:
    """A worker whose answers are short, so that it gets through many of them."""
    model = ScriptedModel([50, 51, 52], vocabulary_size=260, eos_token_id=2, context_length=96)
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        worker = runner.run(stack.enter_async_context(served_to_named(loaded(model), kv_blocks=64)))
        try:
            yield FuzzedService(runner.get_loop(), worker)
        finally:
            runner.run(stack.aclose())


def calls() -> st.SearchStrategy[tuple[MethodDescriptor, bytes]]:
    """A method, and what it is sent."""
    return st.sampled_from([method for method in METHODS if method.name not in _SLOW]).flatmap(
        lambda method: st.tuples(st.just(method), wire_bytes(method.input_type))
    )


def fuzz(num_messages: int) -> Counter[grpc.StatusCode]:
    """Send about so many messages; how often each status came. Raises AssertionError."""
    with fuzzed_service() as service:

        @settings(max_examples=num_messages, deadline=None, suppress_health_check=list(HealthCheck))
        @given(calls(), st.sampled_from(Role))
        def send(request: tuple[MethodDescriptor, bytes], role: Role) -> None:
            service.send(*request, role)

        send()
        service.check()
        return service.num_answers
