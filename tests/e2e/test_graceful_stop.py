"""The real process with the default model: ready, answering, and gone in good order."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from support.served_worker import rest_of

from prefixcache.v1 import inference_pb2 as pb
from prefixcache.v1 import inference_pb2_grpc

DEADLINE_SECONDS = 120.0
"""Loading the model on a slow, busy machine takes a few seconds; nothing here takes this long."""


@asynccontextmanager
async def worker_process(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker that has just been started, and is gone afterwards whatever happens."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "prefixcache_worker", "--address", "127.0.0.1:0", "--kv-blocks", "64",
        *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ready_address(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    pool_line = (await process.stdout.readline()).decode()
    ready_line = (await process.stdout.readline()).decode()
    assert pool_line == "pool: 64 KV blocks + 16 headroom, 720KiB each, 56.25MiB in all\n"
    assert ready_line.startswith("listening on 127.0.0.1:")
    return ready_line.split()[-1]


async def test_sigterm_lets_a_running_stream_finish_and_exits_with_0():
    async with worker_process() as process:
        async with grpc.aio.insecure_channel(await ready_address(process)) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            running = stub.Generate(question(max_tokens=48, ignore_eos=True), timeout=DEADLINE_SECONDS)
            first = await running.read()
            process.send_signal(signal.SIGTERM)
            refusal = await first_refusal(stub)
            responses = [first, *await rest_of(running)]
        _, errors = await process.communicate()

    assert refusal.code() is grpc.StatusCode.UNAVAILABLE
    assert "Paris" in "".join(response.delta.text for response in responses)
    assert sum(len(response.delta.token_ids) for response in responses) == 48
    assert responses[-1].completion.usage.completion_tokens == 48
    assert process.returncode == 0
    assert b"Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_gives_up_a_running_stream_and_exits_with_0(number: signal.Signals):
    async with worker_process("--drain-seconds", "86400") as process:
        async with grpc.aio.insecure_channel(await ready_address(process)) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            running = stub.Generate(question(max_tokens=900, ignore_eos=True), timeout=DEADLINE_SECONDS)
            await running.read()
            process.send_signal(number)
            await first_refusal(stub)
            process.send_signal(number)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await rest_of(running)
            ended = asyncio.ensure_future(process.communicate())
            while not (await asyncio.wait([ended], timeout=0.05))[0]:
                if process.returncode is None:
                    process.send_signal(number)  # whoever goes on pressing Ctrl-C makes no failure of it
        _, errors = ended.result()

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "the worker shut down before the answer was complete" in caught.value.details()
    assert process.returncode == 0
    log = errors.decode()
    assert "a second signal stops at once" in log
    assert "stopping at once" in log
    assert "Traceback" not in log


async def test_b107_a_worker_that_is_killed_ends_its_streams_with_an_error():
    """At the fifth token: no stream may look as if its answer were complete."""
    async with (
        worker_process() as process,
        grpc.aio.insecure_channel(await ready_address(process)) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        running = stub.Generate(question(max_tokens=900, ignore_eos=True), timeout=DEADLINE_SECONDS)
        responses = []
        while sum(len(response.delta.token_ids) for response in responses) < 5:
            responses.append(await running.read())
        process.kill()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rest_of(running)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert all(response.WhichOneof("event") == "delta" for response in responses)
    assert all(response.delta.finish_reason == 0 for response in responses)


async def first_refusal(stub: inference_pb2_grpc.InferenceServiceStub) -> grpc.aio.AioRpcError:
    """Send requests until one is refused: until the signal has arrived, they are still taken."""
    while True:
        try:
            await stub.Generate(question(max_tokens=1), timeout=DEADLINE_SECONDS).read()
        except grpc.aio.AioRpcError as error:
            return error


def question(*, max_tokens: int, ignore_eos: bool = False) -> pb.GenerateRequest:
    message = pb.ChatMessage(role="user", content="What is the capital of France?")
    return pb.GenerateRequest(
        chat=pb.ChatMessages(messages=[message]),
        sampling=pb.SamplingParams(temperature=0),
        stop_conditions=pb.StopConditions(max_tokens=max_tokens, ignore_eos=ignore_eos),
    )
