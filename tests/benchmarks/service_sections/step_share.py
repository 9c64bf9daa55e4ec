"""What the service takes of the real model's steps: 32 streams over prompts of 1,024 tokens."""

from __future__ import annotations

import asyncio
import time

import grpc
import psutil
from report import Row

from prefixcache_client.worker_process import WorkerProcess
from service_sections.raw_client import request, start

NUM_STREAMS = 32
NUM_SHARED, NUM_OWN = 1008, 16
NUM_TOKENS = 64


def step_share_rows() -> list[Row]:
    """Processor time of all threads but the model's, beside that of the thread that steps."""
    num_threads = psutil.cpu_count() or 1
    with WorkerProcess("--num-threads", str(num_threads)) as worker:
        address = worker.wait_ready(timeout_seconds=120)
        [process] = psutil.Process().children()
        num_tokens_per_second, seconds_by_thread = asyncio.run(_measure(address, process))
    # Those of the model compute all the time: the engine's, which steps, and the others of its team.
    busiest = sorted(seconds_by_thread, reverse=True)
    share = sum(busiest[num_threads:]) / busiest[0]
    return [
        Row(
            name=f"the service's share of a step, {NUM_STREAMS} streams over 1,024 tokens",
            value=100 * share,
            unit="% of its time",
            bar="<= 5",
            holds=share <= 0.05,
            note=f"{num_tokens_per_second:.0f} tokens/s; processor time of asyncio and gRPC, all threads of "
            f"the worker but the model's {num_threads}, over that of the thread that steps",
        )
    ]


async def _measure(address: str, process: psutil.Process) -> tuple[float, list[float]]:
    """Tokens a second, and processor seconds of each thread, from when all streams have begun to the end."""
    shared = [1000 + i % 997 for i in range(NUM_SHARED)]
    async with grpc.aio.insecure_channel(address) as channel:
        await _read_rest(start(channel, request([*shared, 7], 1)))
        prompts = [
            shared + [2000 + 100 * number + i for i in range(NUM_OWN)] for number in range(NUM_STREAMS)
        ]
        calls = [start(channel, request(prompt, NUM_TOKENS)) for prompt in prompts]
        for call in calls:
            await call.read()
        begun, before = time.perf_counter(), _cpu_seconds(process)
        await asyncio.gather(*map(_read_rest, calls))
        wall, after = time.perf_counter() - begun, _cpu_seconds(process)
    return NUM_STREAMS * NUM_TOKENS / wall, [
        seconds - before.get(thread, 0.0) for thread, seconds in after.items()
    ]


async def _read_rest(call: grpc.aio.UnaryStreamCall) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


def _cpu_seconds(process: psutil.Process) -> dict[int, float]:
    return {thread.id: thread.user_time + thread.system_time for thread in process.threads()}
