"""The page of metrics of a worker that has done something of everything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from support.hand_engine import stream
from support.served_worker import ServedWorker, greedy_request, served
from support.tiny_loaded_model import loaded
from support.tiny_model import tiny_decoder


class Family(NamedTuple):
    """What is the same for all samples of a metric."""

    type: str
    labels: tuple[str, ...]
    help: str


@asynccontextmanager
async def busy_worker(*, num_rounds: int = 1, **settings: Any) -> AsyncIterator[ServedWorker]:
    """It has a small pool and a tier behind it; two tenants have had answers, and blocks were evicted."""
    settings = {"kv_blocks": 8, "kv_headroom": 0.0, "tier_memory": 1 << 20} | settings
    async with served(loaded(tiny_decoder()), **settings) as worker:
        for tenant, text in (("shop", "a"), ("shop", "a"), ("bank", "z")) * num_rounds:
            await worker.answer(greedy_request(stream(text, 100), 4), tenant=tenant)
        yield worker


async def families_of(worker: ServedWorker) -> dict[str, Family]:
    """By name as it is in queries, so that of a counter ends with `_total`."""
    page = await worker.worker.metrics.page()
    families = {}
    for metric in text_string_to_metric_families(page.body.decode()):
        is_counter = metric.type == "counter"
        labels = {label for sample in metric.samples for label in sample.labels} - {"le"}
        families[metric.name + "_total" * is_counter] = Family(
            metric.type, tuple(sorted(labels)), metric.documentation
        )
    return families
