"""A whole worker behind a real port, inside the test's own process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.delegating_model import DelegatingModel

from prefixcache.v1 import cache_pb2, cache_pb2_grpc, inference_pb2, inference_pb2_grpc
from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.model.loader import LoadedModel
from prefixcache_worker.model.model import ForwardBatch, Model, StepAttention
from prefixcache_worker.server.access.access import OpenAccess
from prefixcache_worker.server.access.access_settings import AccessSettings
from prefixcache_worker.server.build import Worker, assemble_worker
from prefixcache_worker.server.grpc.connections import ConnectionAge
from prefixcache_worker.server.service import Service
from prefixcache_worker.server.tls import TlsIdentity

T = TypeVar("T")

DEADLINE_SECONDS = 30.0
"""Nothing in a test takes this long unless it hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWorker:
    """A running worker and a client's channel to it."""

    worker: Worker
    service: Service
    address: str
    channel: grpc.aio.Channel
    inference: Any
    cache: Any

    def generate(self, message: inference_pb2.GenerateRequest, *, tenant: str | None = None) -> Any:
        """Start a call; iterate over it for the responses."""
        metadata = [("x-tenant-id", tenant)] if tenant is not None else []
        return self.inference.Generate(message, metadata=metadata, timeout=DEADLINE_SECONDS)

    async def answer(self, message: inference_pb2.GenerateRequest, *, tenant: str | None = None) -> Answer:
        """The whole answer of a request with one choice. Raises grpc.RpcError."""
        responses = [response async for response in self.generate(message, tenant=tenant)]
        assert [response.WhichOneof("event") for response in responses[:-1]] == ["delta"] * (
            len(responses) - 1
        )
        deltas = [response.delta for response in responses[:-1]]
        assert responses[-1].WhichOneof("event") == "completion"
        return Answer(
            text="".join(delta.text for delta in deltas),
            token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
            finish_reason=deltas[-1].finish_reason,
            completion=responses[-1].completion,
        )

    async def refusal(self, message: inference_pb2.GenerateRequest) -> grpc.aio.AioRpcError:
        """The error that a request is answered with."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.answer(message)
        return caught.value

    async def health(self, service: str = "") -> int:
        """The serving status of one service, or of the whole worker."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        message = health_pb2.HealthCheckRequest(service=service)
        return int((await stub.Check(message, timeout=DEADLINE_SECONDS)).status)

    async def clients_gone(self, num_left: int = 0) -> None:
        """Return when the server has noticed that its clients left, all but a few, whatever steps run."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(self.worker.engine_loop._streams) > num_left:
                await self.health()

    async def stats(self) -> cache_pb2.GetStatsResponse:
        return await self.cache.GetStats(cache_pb2.GetStatsRequest(), timeout=DEADLINE_SECONDS)

    async def stats_when(
        self, reached: Callable[[cache_pb2.GetStatsResponse], bool]
    ) -> cache_pb2.GetStatsResponse:
        """The first stats that `reached` holds for; each reading waits for an engine step or none."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not reached(stats := await self.stats()):
                pass
        return stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All deltas of one choice, joined, and the completion."""

    text: str
    token_ids: list[int]
    finish_reason: int
    completion: inference_pb2.Completion


def greedy_request(token_ids: Sequence[int], max_tokens: int, **fields: Any) -> inference_pb2.GenerateRequest:
    """Ask for exactly so many of the likeliest tokens; `fields` are those of GenerateRequest."""
    fields = {"sampling": inference_pb2.SamplingParams(temperature=0)} | fields
    return inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=token_ids),
        stop_conditions=inference_pb2.StopConditions(max_tokens=max_tokens, ignore_eos=True),
        **fields,
    )


async def rest_of(call: Any) -> list[inference_pb2.GenerateResponse]:
    """What is still to come of a call that was read from by hand. Raises grpc.RpcError."""
    responses = []
    while (response := await call.read()) is not grpc.aio.EOF:
        responses.append(response)
    return responses


@asynccontextmanager
async def served(
    loaded: LoadedModel,
    *,
    callers: AccessSettings | None = None,
    tls: TlsIdentity | None = None,
    connection_age: ConnectionAge | None = None,
    **settings: Any,
) -> AsyncIterator[ServedWorker]:
    """Serve a model on a free port, without `callers` to everybody in whatever name.

    `settings` are those of WorkerConfig, the pool of 64 blocks if unset.
    """
    pool = {} if "kv_memory" in settings or "kv_blocks" in settings else {"kv_blocks": 64}
    worker = assemble_worker(loaded, WorkerConfig(**pool, **settings))
    everybody = AccessSettings(access=OpenAccess(trusts_tenant_header=True))
    service = Service(callers=callers or everybody, tls=tls, connection_age=connection_age)
    address = service.bind("127.0.0.1:0")
    await service.start(worker)
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield ServedWorker(
                worker=worker,
                service=service,
                address=address,
                channel=channel,
                inference=inference_pb2_grpc.InferenceServiceStub(channel),
                cache=cache_pb2_grpc.CacheServiceStub(channel),
            )
    finally:
        await service.stop(drain_seconds=0)


class GatedModel(DelegatingModel):
    """Another model that computes only as many steps as it was allowed: the test holds the clock."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._permits = threading.Semaphore(0)
        self._begun = threading.Semaphore(0)

    def allow(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self._permits.release()

    async def begin(self, num_steps: int) -> None:
        """Wait until so many more steps have begun, whether they were allowed or not."""
        for _ in range(num_steps):
            begun = await asyncio.to_thread(self._begun.acquire, timeout=DEADLINE_SECONDS)
            assert begun, "no step began in time"

    async def stepping(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` comes to, which needs steps to go on: one at a time, until it is there."""
        working = asyncio.create_task(work)
        while not working.done():
            self.allow(1)
            await asyncio.wait({working}, timeout=0.01)  # else all steps would be allowed at once
        return working.result()

    def forward(self, batch: ForwardBatch, attention: StepAttention) -> torch.Tensor:
        self._begun.release()
        assert self._permits.acquire(timeout=DEADLINE_SECONDS), "no step was allowed in time"
        return super().forward(batch, attention)
