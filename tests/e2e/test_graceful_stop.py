"""The real process with the default model: ready, answering, and gone in good order."""

from __future__ import annotations

import asyncio
import signal
import sys

import grpc
from support.served_worker import rest_of

from prefixcache.v1 import inference_pb2 as pb
from prefixcache.v1 import inference_pb2_grpc

DEADLINE_SECONDS = 120.0
"""Loading the model on a slow, busy machine takes a few seconds; nothing here takes this long."""


async def test_sigterm_lets_a_running_stream_finish_and_exits_with_0():
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "prefixcache_worker", "--address", "127.0.0.1:0", "--kv-blocks", "64",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await stream_through_sigterm(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def stream_through_sigterm(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    pool_line = (await process.stdout.readline()).decode()
    ready_line = (await process.stdout.readline()).decode()
    assert pool_line == "pool: 64 KV blocks + 16 headroom, 720KiB each, 56.25MiB in all\n"
    assert ready_line.startswith("listening on 127.0.0.1:")

    async with grpc.aio.insecure_channel(ready_line.split()[-1]) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        running = stub.Generate(question(max_tokens=48, ignore_eos=True), timeout=DEADLINE_SECONDS)
        first = await running.read()
        process.send_signal(signal.SIGTERM)
        refusal = await first_refusal(stub)
        responses = [first, *await rest_of(running)]

    assert refusal.code() is grpc.StatusCode.UNAVAILABLE
    assert "Paris" in "".join(response.delta.text for response in responses)
    assert sum(len(response.delta.token_ids) for response in responses) == 48
    assert responses[-1].completion.usage.completion_tokens == 48
    _, errors = await process.communicate()
    assert process.returncode == 0
    assert b"Traceback" not in errors


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
