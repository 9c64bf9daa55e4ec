"""A worker with the OpenAI-compatible door open, inside the test's own process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from support.served_worker import DEADLINE_SECONDS

from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.model.loader import LoadedModel
from prefixcache_worker.server.build import Worker, assemble_worker
from prefixcache_worker.server.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpWorker:
    """A running worker and an HTTP client of it."""

    worker: Worker
    service: Service
    address: str
    client: httpx.AsyncClient

    @property
    def base_url(self) -> str:
        """What OpenAI's clients take."""
        return f"http://{self.address}/v1"


@asynccontextmanager
async def http_served(loaded: LoadedModel, **settings: Any) -> AsyncIterator[HttpWorker]:
    """Serve a model on free ports; `settings` are those of WorkerConfig, the pool of 256 blocks if unset."""
    worker = assemble_worker(loaded, WorkerConfig(**{"kv_blocks": 256} | settings))
    service = Service()
    service.bind("127.0.0.1:0")
    address = service.bind_http("127.0.0.1:0")
    await service.start(worker)
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=DEADLINE_SECONDS) as client:
            yield HttpWorker(worker=worker, service=service, address=address, client=client)
    finally:
        await service.stop(drain_seconds=0)
