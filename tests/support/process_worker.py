"""A real worker process over a tiny checkpoint, and what can be seen of it from outside."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from support.tiny_checkpoint import save_tiny_checkpoint, tiny_transformers_model

from prefixcache_client import AsyncClient, Stats
from prefixcache_client.worker_process import WorkerProcess

START_SECONDS = 120.0
QUIET_SECONDS = 60.0


def tiny_model_folder(path: Path) -> Path:
    """A checkpoint that loads in no time and computes a token in a millisecond."""
    path.mkdir(parents=True, exist_ok=True)
    return save_tiny_checkpoint(path, tiny_transformers_model())


@contextmanager
def process_worker(model: Path, *arguments: str) -> Iterator[tuple[WorkerProcess, str]]:
    """The process and the address of its gRPC door; stopped at the end."""
    environment = {
        "OMP_NUM_THREADS": "1",
        # glibc would give each thread an arena of its own, which is not what a leak looks like.
        "MALLOC_ARENA_MAX": "1",
        "PYTHONPATH": os.pathsep.join(("", "worker", "client")),
    }
    with WorkerProcess("--model", str(model), *arguments, environment=environment) as worker:
        yield worker, worker.wait_ready(timeout_seconds=START_SECONDS)


def resident_bytes(worker: WorkerProcess) -> int:
    """Memory of the process that is in use now."""
    return int(psutil.Process(worker.process_id).memory_info().rss)


async def quiet_stats(client: AsyncClient) -> Stats:
    """The counts once nothing runs or waits any more; each reading waits for an engine step or none."""
    async with asyncio.timeout(QUIET_SECONDS):
        while True:
            stats = await client.stats()
            if not (stats.requests.running or stats.requests.waiting):
                return stats
