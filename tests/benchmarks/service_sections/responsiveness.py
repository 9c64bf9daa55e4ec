"""Health and abort while every slot is busy and the scripted model runs as fast as it can."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from report import Row

from prefixcache.v1 import cache_pb2, cache_pb2_grpc, inference_pb2, inference_pb2_grpc
from service_sections.raw_client import request, start
from service_sections.scripted_worker import NUM_SLOTS, scripted_worker

NUM_PROBES = 30
MAX_TOKENS = 8000


def responsiveness_rows() -> list[Row]:
    """The slowest answer of each kind."""
    with scripted_worker() as address:
        health, abort, ended = asyncio.run(_measure(address))
    return [
        _row("health check while all slots are busy", health),
        _row("Abort while all slots are busy", abort),
        _row("the stream it ends, until its client knows", ended),
    ]


def _row(name: str, seconds: list[float]) -> Row:
    return Row(
        name=name,
        value=1000 * max(seconds),
        unit="ms, the slowest",
        spread=f"{1000 * min(seconds):.0f} to {1000 * max(seconds):.0f}",
        bar="<= 200",
        holds=max(seconds) <= 0.2,
        note=f"median {1000 * statistics.median(seconds):.0f} ms of {len(seconds)}",
    )


async def _measure(address: str) -> tuple[list[float], list[float], list[float]]:
    health, abort, ended = [], [], []
    async with grpc.aio.insecure_channel(address) as channel:
        inference = inference_pb2_grpc.InferenceServiceStub(channel)
        check = health_pb2_grpc.HealthStub(channel).Check
        busy = [asyncio.create_task(_keep_a_slot_busy(channel, 4 + i)) for i in range(NUM_SLOTS)]
        while (await _num_running(channel)) < NUM_SLOTS:
            pass
        for number in range(NUM_PROBES):
            health.append(await _seconds_of(check(health_pb2.HealthCheckRequest())))
            waiting = start(channel, request([5] * 16, 1000, request_id=f"probe {number}"))
            await waiting.initial_metadata()  # it has been taken, and waits for a slot
            message = inference_pb2.AbortRequest(request_id=f"probe {number}")
            begun = time.perf_counter()
            abort.append(await _seconds_of(inference.Abort(message)))
            assert await waiting.code() is grpc.StatusCode.CANCELLED
            ended.append(time.perf_counter() - begun)
        assert await _num_running(channel) == NUM_SLOTS, "all slots were busy all the time"
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
    return health, abort, ended


async def _keep_a_slot_busy(channel: grpc.aio.Channel, token_id: int) -> None:
    while True:
        call = start(channel, request([token_id] * 16, MAX_TOKENS))
        while await call.read() is not grpc.aio.EOF:
            pass


async def _num_running(channel: grpc.aio.Channel) -> int:
    stats = await cache_pb2_grpc.CacheServiceStub(channel).GetStats(cache_pb2.GetStatsRequest())
    return int(stats.requests.running)


async def _seconds_of(call: Awaitable[object]) -> float:
    begun = time.perf_counter()
    await call
    return time.perf_counter() - begun
