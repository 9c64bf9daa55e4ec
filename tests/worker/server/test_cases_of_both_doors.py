"""What comes by gRPC and what comes by HTTP meets in one cache, and obeys the same rules there."""

from __future__ import annotations

from itertools import product

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.hand_engine import stream
from support.http_worker import MODEL_NAME, HttpWorker, http_served
from support.tiny_loaded_model import loaded
from support.tiny_model import tiny_decoder

from prefixcache_client import AsyncClient

PROMPT = stream("a", 64)
OWNERS = {
    "T1": ("A", ""),
    "T2": ("A", ""),
    "T3": ("B", ""),
    "T4": (None, ""),
    "T5": ("A", "pepper"),
    "T6": ("B", ""),
}
"""Tenant and salt of the requests of B06, in their order."""


async def cached_by_grpc(worker: HttpWorker, tenant: str | None, salt: str) -> int:
    async with AsyncClient(worker.grpc_address, tenant=tenant) as client:
        answer = await client.generate(PROMPT, max_tokens=1, temperature=0, salt=salt)
    return answer.usage.cached_tokens


async def cached_by_http(worker: HttpWorker, tenant: str | None, salt: str) -> int:
    body = {"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": 1, "temperature": 0, "cache_salt": salt}
    headers = {} if tenant is None else {"x-tenant-id": tenant}
    response = await worker.client.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


DOORS = {"gRPC": cached_by_grpc, "HTTP": cached_by_http}


@pytest.mark.parametrize(("first", "second"), list(product(DOORS, DOORS)))
async def test_b06_tenant_and_salt_reach_the_key_by_whichever_door(first: str, second: str) -> None:
    async with http_served(loaded(tiny_decoder())) as worker:
        cached = {
            name: await DOORS[first if number % 2 == 0 else second](worker, *owner)
            for number, (name, owner) in enumerate(OWNERS.items())
        }
    assert cached == {"T1": 0, "T2": 63, "T3": 0, "T4": 0, "T5": 0, "T6": 63}


async def test_b136_a_scrape_tells_what_is_in_use_from_what_is_only_cached() -> None:
    async with http_served(loaded(tiny_decoder()), kv_blocks=100, kv_headroom=0.0) as worker:
        for number in range(24):
            prompt = [4 + number, *stream("b", 31)]
            response = await worker.complete(prompt, max_tokens=1, temperature=0)
            assert response.status_code == 200
        page = (await worker.client.get("/metrics")).text
    blocks = {
        sample.labels["state"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "prefixcache_blocks"
    }
    assert blocks == {"live": 0, "idle": 48, "free": 52}
    assert "prefixcache_kv_cache_usage_ratio 0.0" in page.splitlines()
