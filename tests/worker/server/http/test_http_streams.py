"""Streams that break, clients that leave and clients that read slowly."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch
from support.delegating_model import DelegatingModel
from support.http_worker import HttpWorker, http_served
from support.served_worker import DEADLINE_SECONDS, GatedModel
from support.tiny_loaded_model import EOS_ID, loaded

from prefixcache_worker.model.model import ForwardBatch, StepAttention
from prefixcache_worker.model.scripted_model import ScriptedModel
from prefixcache_worker.server.http import exchange


def scripted(num_tokens: int = 4000) -> ScriptedModel:
    return ScriptedModel([7] * num_tokens, vocabulary_size=260, eos_token_id=EOS_ID)


class BreakingModel(DelegatingModel):
    """Another model whose step number `broken_step` fails."""

    def __init__(self, model: ScriptedModel, *, broken_step: int) -> None:
        super().__init__(model)
        self._steps_left = broken_step

    def forward(self, batch: ForwardBatch, attention: StepAttention) -> torch.Tensor:
        self._steps_left -= 1
        if self._steps_left == 0:
            raise RuntimeError("secret of the model")
        return super().forward(batch, attention)


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"model": "tiny", "prompt": ["hi", "ho"], "max_tokens": 4000},
}


@pytest.mark.parametrize("path", BODIES)
async def test_b107_a_stream_that_breaks_ends_with_one_error(path: str):
    """No finish reason, no [DONE]: nobody can take what there is for the whole answer."""
    model = BreakingModel(scripted(), broken_step=5)
    async with http_served(loaded(model)) as worker:
        response = await worker.client.post(path, json=BODIES[path] | {"stream": True})
        *texts, error, rest = response.text.split("\n\n")
        assert (response.status_code, rest) == (200, "")
        assert "secret" not in response.text
        described = json.loads(error.removeprefix("data: "))["error"]
        assert (described["type"], described["code"]) == ("server_error", "internal_error")
        choices = [choice for text in texts for choice in json.loads(text.removeprefix("data: "))["choices"]]
        assert sum(len(_text(choice)) for choice in choices) >= 4
        assert all(choice["finish_reason"] is None for choice in choices)
        stats = await worker.stats_without_clients()
        assert (stats.requests.failed, stats.blocks.live) == (len(BODIES[path].get("prompt", "1")), 0)
        again = await worker.client.post(path, json=BODIES[path] | {"max_tokens": 2})
        assert again.json()["usage"]["completion_tokens"] > 0


def _text(choice: dict[str, Any]) -> str:
    return str(choice["text"] if "text" in choice else choice["delta"]["content"])


@pytest.mark.parametrize("path", BODIES)
async def test_a_request_that_breaks_before_its_first_token_has_a_status(path: str):
    async with http_served(loaded(BreakingModel(scripted(), broken_step=1))) as worker:
        response = await worker.client.post(path, json=BODIES[path] | {"stream": True})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"


async def test_b107_a_drain_that_takes_too_long_ends_streams_with_an_error():
    model = GatedModel(scripted())
    async with http_served(loaded(model)) as worker:
        body = BODIES["/v1/chat/completions"] | {"stream": True}
        model.allow(3)
        async with worker.client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.aiter_lines()
            assert "assistant" in await anext(lines)
            await model.begin(4)
            stopping = asyncio.ensure_future(worker.service.stop(drain_seconds=0))
            model.allow(1000)
            rest = [line async for line in lines if line]
            await stopping
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "engine_stopped"
    assert "[DONE]" not in rest


@asynccontextmanager
async def raw_post(
    worker: HttpWorker, path: str, body: dict[str, Any]
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection with one request on it, read by hand."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client.setblocking(False)
    host, port = worker.address.split(":")
    await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=client, limit=1 << 16)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    await writer.drain()
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("way", ["close", "abort"])
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("path", BODIES)
async def test_b64_a_client_that_leaves_frees_everything_within_two_steps(
    path: str, is_stream: bool, way: str, caplog: pytest.LogCaptureFixture
):
    model = GatedModel(scripted())
    async with http_served(loaded(model)) as worker:
        async with raw_post(worker, path, BODIES[path] | {"stream": is_stream}) as (reader, writer):
            model.allow(3)
            if is_stream:
                await reader.readuntil(b"data: ")
            await model.begin(4)
            if way == "close":
                writer.close()
            else:
                writer.transport.abort()
            while worker.worker.engine_loop._streams:
                await worker.client.get("/healthz")
        model.allow(2)
        stats = await worker.stats_without_clients()
        num_requests = len(BODIES[path].get("prompt", "1"))
        assert (stats.requests.running, stats.requests.waiting, stats.blocks.live) == (0, 0, 0)
        assert (stats.requests.cancelled, stats.requests.finished) == (num_requests, 0)
        assert stats.requests.steps <= 3 + 2
        model.allow(10_000)
    assert not caplog.records, "a client that leaves is nothing to log"


async def test_b99_clients_that_leave_at_any_moment_leave_nothing():
    """Before the request is read, while it waits, while it runs: none stays, and the worker serves on."""
    chance = random.Random(7)
    async with http_served(loaded(scripted(200)), max_running=4, kv_blocks=64) as worker:

        async def come_and_leave() -> None:
            path = chance.choice(list(BODIES))
            body = BODIES[path] | {"stream": chance.random() < 0.5}
            async with raw_post(worker, path, body):
                for _ in range(chance.randrange(40)):
                    await asyncio.sleep(0)

        for _ in range(15):
            await asyncio.gather(*(come_and_leave() for _ in range(8)))
        stats = await worker.stats_without_clients()
        assert (stats.requests.running, stats.requests.waiting, stats.blocks.live) == (0, 0, 0)
        assert stats.requests.failed == 0
        await worker.worker.engine_loop.call(lambda engine: engine.cache.check())
        assert (await worker.chat(max_tokens=3)).json()["usage"]["completion_tokens"] == 3


FAT = {"model": "tiny", "prompt": "x", "n": 32, "max_tokens": 125, "stream": True, "logprobs": 20}
"""Its events have some megabytes: more than the buffers on the way hold."""


async def test_what_a_client_does_not_read_stays_with_the_engine_which_pauses():
    async with (
        http_served(loaded(scripted()), kv_blocks=512) as worker,
        raw_post(worker, "/v1/completions", FAT) as (reader, _),
    ):
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not _is_paused(worker):
                await worker.client.get("/healthz")
        stats = await worker.worker.engine_loop.call(lambda engine: engine.stats(reset_peaks=False))
        assert 1024 <= stats.tokens.generated < 3900
        text = b""
        while b"[DONE]" not in text[-100:]:
            text += await reader.read(1 << 16)
        assert not worker.worker.engine_loop._streams
    events = [line for line in text.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in json.loads(event[6:])["choices"]]
    assert sum(len(choice["logprobs"]["tokens"]) for choice in choices if choice["logprobs"]) == 4000


async def test_a_client_that_never_reads_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchange, "WRITE_SECONDS", 0.2)
    async with (
        http_served(loaded(scripted()), kv_blocks=512) as worker,
        raw_post(worker, "/v1/completions", FAT) as (reader, _),
    ):
        await reader.readuntil(b"data: ")
        stats = await worker.stats_without_clients()
        assert (stats.requests.cancelled, stats.requests.running, stats.blocks.live) == (1, 0, 0)
        assert (await worker.chat(max_tokens=2)).status_code == 200


def _is_paused(worker: HttpWorker) -> bool:
    return any(stream._stall is not None for stream in worker.worker.engine_loop._streams.values())
