"""A worker with the OpenAI-compatible door open, inside the test's own process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from support.served_worker import DEADLINE_SECONDS

from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.engine.stats import EngineStats
from prefixcache_worker.model.loader import LoadedModel
from prefixcache_worker.server.access.access import Access, OpenAccess
from prefixcache_worker.server.access.access_settings import AccessSettings
from prefixcache_worker.server.build import Worker, assemble_worker
from prefixcache_worker.server.service import Service
from prefixcache_worker.server.tls import TlsIdentity

MODEL_NAME = "tiny"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpWorker:
    """A running worker and an HTTP client of it."""

    worker: Worker
    service: Service
    address: str
    grpc_address: str
    """Of the other door."""
    client: httpx.AsyncClient

    @property
    def base_url(self) -> str:
        """What OpenAI's clients take."""
        return f"http://{self.address}/v1"

    async def chat(self, content: str = "hi", **fields: Any) -> httpx.Response:
        """POST one user turn."""
        body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": content}]} | fields
        return await self.client.post("/v1/chat/completions", json=body)

    async def complete(self, prompt: Any, **fields: Any) -> httpx.Response:
        """POST a prompt, or several."""
        return await self.client.post(
            "/v1/completions", json={"model": MODEL_NAME, "prompt": prompt} | fields
        )

    async def stats_without_clients(self) -> EngineStats:
        """The engine's figures when the door has noticed that all its clients left."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while self.worker.engine_loop._streams:
                await self.client.get("/healthz")
        return await self.worker.engine_loop.call(lambda engine: engine.stats(reset_peaks=False))


def refusal(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer that is refused with this status, in the form that all of them have."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


def events_of(text: str) -> list[dict[str, Any]]:
    """The objects of a stream of events, which ends with [DONE]."""
    *events, end, rest = text.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: {") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


@asynccontextmanager
async def http_served(
    loaded: LoadedModel, *, access: Access | None = None, tls: TlsIdentity | None = None, **settings: Any
) -> AsyncIterator[HttpWorker]:
    """Serve a model on free ports; `settings` are those of WorkerConfig, the pool of 256 blocks if unset."""
    worker = assemble_worker(loaded, WorkerConfig(**{"kv_blocks": 256} | settings))
    everybody = OpenAccess(trusts_tenant_header=True)
    service = Service(callers=AccessSettings(access=access or everybody), tls=tls)
    grpc_address = service.bind("127.0.0.1:0")
    address = service.bind_http("127.0.0.1:0")
    await service.start(worker)
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=DEADLINE_SECONDS) as client:
            yield HttpWorker(
                worker=worker, service=service, address=address, grpc_address=grpc_address, client=client
            )
    finally:
        await service.stop(drain_seconds=0)
