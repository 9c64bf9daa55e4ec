"""Large requests of both doors share one memory."""

from __future__ import annotations

import asyncio

import pytest
from support.http_worker import MODEL_NAME, http_served, refusal
from support.served_worker import DEADLINE_SECONDS, GatedModel
from support.tiny_loaded_model import EOS_ID, loaded

from prefixcache_worker.errors import QueueFullError
from prefixcache_worker.model.scripted_model import ScriptedModel
from prefixcache_worker.server.large_requests import LARGE_REQUEST_BYTES, LargeRequests


def test_large_requests_are_refused_while_others_take_the_memory():
    small, large = LARGE_REQUEST_BYTES, LARGE_REQUEST_BYTES + 1
    requests = LargeRequests(max_bytes=3 * small)
    with requests.room() as first, requests.room() as second, requests.room() as third:
        first.grow_to(large)
        second.grow_to(large)
        third.grow_to(small)
        with pytest.raises(QueueFullError, match=f"^{2 * large} .* {3 * small} .* {large};"):
            third.grow_to(large)
    assert requests.num_bytes == 0


def test_a_request_that_grows_is_counted_once():
    requests = LargeRequests()
    with requests.room() as room:
        for num_bytes in (1, LARGE_REQUEST_BYTES, LARGE_REQUEST_BYTES + 1, 100_000):
            room.grow_to(num_bytes)
        assert requests.num_bytes == 100_000
    assert requests.num_bytes == 0


async def test_a_large_body_is_counted_until_its_answer_has_ended(monkeypatch: pytest.MonkeyPatch):
    requests = LargeRequests(max_bytes=150_000)
    monkeypatch.setattr("prefixcache_worker.server.service.LargeRequests", lambda: requests)
    model = GatedModel(
        ScriptedModel([7] * 64, vocabulary_size=1000, eos_token_id=EOS_ID, context_length=8192)
    )
    body = {"model": MODEL_NAME, "prompt": "a", "max_tokens": 2, "user": "x" * 90_000}
    async with http_served(loaded(model)) as worker:
        first = asyncio.ensure_future(worker.client.post("/v1/completions", json=body))
        await model.begin(1)
        error = refusal(await worker.client.post("/v1/completions", json=body), 429)
        assert error["code"] == "queue_full"
        model.allow(1000)
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert (await first).status_code == 200
        assert (await worker.client.post("/v1/completions", json=body)).status_code == 200
    assert requests.num_bytes == 0
