"""What a scrape of the metrics costs where there is much to tell: a full pool, many tenants, all slots busy.

Usage: python -m load_sections.scrape, in tests/benchmarks.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from report import Row, print_rows

NUM_BLOCKS = 100_000
NUM_TENANTS = 10_000
BLOCKS_OF_A_TENANT = 9
"""90,000 in all: the other blocks are for what runs."""
NUM_RUNNING = 64
NUM_SCRAPES = 60
MAX_SCRAPE_SECONDS = 0.020

TESTS = Path(__file__).parents[2]


def scrape_rows() -> list[Row]:
    """The median of whole scrapes through HTTP of an engine that idles, and how long each held the engine."""
    scrapes, holds, page_bytes = asyncio.run(_measure())
    note = (
        f"{NUM_BLOCKS:,} blocks, {NUM_TENANTS:,} tenants, {NUM_RUNNING} running, {page_bytes / 1000:.0f} kB"
    )
    return [
        _row("scrape of the metrics page", scrapes, MAX_SCRAPE_SECONDS, note),
        _row("time that a scrape holds the engine", holds, None, "all else is done beside it"),
    ]


def _row(name: str, seconds: list[float], bar: float | None, note: str) -> Row:
    median = statistics.median(seconds)
    return Row(
        name=name,
        value=1000 * median,
        unit="ms, median",
        spread=f"{1000 * min(seconds):.2f} to {1000 * max(seconds):.2f}",
        bar=None if bar is None else f"<= {1000 * bar:.0f}",
        holds=None if bar is None else median <= bar,
        note=note,
    )


async def _measure() -> tuple[list[float], list[float], int]:
    """Seconds of each scrape, and of its part on the engine's thread; and the bytes of a page.

    The running requests are paused, so that no scrape waits for a step: a step is the model's time.
    """
    import torch

    sys.path.insert(0, str(TESTS))  # for `support`, as pytest has it
    from support.http_worker import http_served
    from support.tiny_loaded_model import EOS_ID, loaded

    from prefixcache import Namespace, pack_tokens
    from prefixcache_worker.engine.engine import Engine
    from prefixcache_worker.engine.request import Request, StopConditions
    from prefixcache_worker.model.scripted_model import ScriptedModel
    from prefixcache_worker.server.metrics.reading import read

    torch.set_num_threads(1)
    model = ScriptedModel([5] * 8000, vocabulary_size=1000, eos_token_id=EOS_ID, context_length=16384)

    def fill(engine: Engine) -> None:
        for number in range(NUM_TENANTS):
            tokens = [number, *range(16 * BLOCKS_OF_A_TENANT - 1)]
            namespace = Namespace("tiny-build", f"tenant {number}")
            handle = engine.cache.acquire(pack_tokens(tokens), namespace)
            engine.cache.complete_copies(handle)
            engine.cache.publish(handle, len(tokens))
            engine.cache.release(handle)
        for number in range(NUM_RUNNING):
            request = Request(
                request_id=str(number),
                namespace=Namespace("tiny-build", f"tenant {number}"),
                prompt_token_ids=(number, *[7] * 1000),
                stop_conditions=StopConditions(max_tokens=8000, ignore_eos=True),
            )
            engine.add(("bench", number), request)

    def start(engine: Engine) -> None:
        while engine.stats().requests.running < NUM_RUNNING:
            engine.step()
        for number in range(NUM_RUNNING):
            engine.pause(("bench", number))

    def end(engine: Engine) -> None:
        for number in range(NUM_RUNNING):
            engine.cancel(("bench", number))

    async with http_served(
        loaded(model), kv_blocks=NUM_BLOCKS, kv_headroom=0.0, max_running=NUM_RUNNING
    ) as worker:
        for tenant in range(30):  # more than the page has names for
            headers = {"x-tenant-id": f"tenant {tenant}"}
            await worker.client.post(
                "/v1/completions",
                json={"model": "tiny", "prompt": [tenant, 1, 2], "max_tokens": 2, "ignore_eos": True},
                headers=headers,
            )
        loop, times = worker.worker.engine_loop, worker.worker.times
        await loop.call(lambda engine: (fill(engine), start(engine)))
        scrapes, holds = [], []
        for _ in range(NUM_SCRAPES):
            begun = time.perf_counter()
            page = await worker.client.get("/metrics")
            scrapes.append(time.perf_counter() - begun)
            assert page.status_code == 200
            holds.append(await loop.call(lambda engine: _seconds(lambda: read(engine, times))))
        await loop.call(end)
    assert f"requests_running {NUM_RUNNING}.0" in page.text
    return scrapes, holds, len(page.content)


def _seconds(what: Callable[[], object]) -> float:
    begun = time.perf_counter()
    what()
    return time.perf_counter() - begun


if __name__ == "__main__":
    print_rows(scrape_rows())
