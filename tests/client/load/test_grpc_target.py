"""A worker of ours as a target."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from support.fake_worker import FakeWorker, abort, completion, delta
from support.served_worker import served
from support.tiny_loaded_model import EOS_ID, loaded

from prefixcache.v1 import inference_pb2
from prefixcache_client.errors import UnavailableError
from prefixcache_client.load.arrivals import ClosedLoop, ConstantRate
from prefixcache_client.load.grpc_target import GrpcTarget
from prefixcache_client.load.runner import Runner
from prefixcache_client.load.target import Answered, Refused
from prefixcache_client.load.tenant_keys import TenantKeys
from prefixcache_client.load.workloads import Chat, SharedPrefix
from prefixcache_client.load.workloads.amount import Amount
from prefixcache_worker.model.scripted_model import ScriptedModel


@asynccontextmanager
async def target(address: str, **options: Any) -> AsyncIterator[GrpcTarget]:
    made = GrpcTarget(address, **options)
    try:
        yield made
    finally:
        await made.close()


async def send(made: GrpcTarget, prompt: Any = (5, 6), **options: Any) -> Answered:
    settings = {"max_tokens": 3, "tenant": None, "public_tokens": 0, "public_messages": 0} | options
    return await made.send(prompt, **settings)


@pytest.fixture
async def real_address() -> AsyncIterator[str]:
    script = [4 + i % 256 for i in range(1000)]
    model = ScriptedModel(script, vocabulary_size=1000, eos_token_id=EOS_ID, context_length=512)
    async with served(loaded(model), kv_blocks=512) as made:
        yield made.address


async def test_the_shared_prefix_of_a_load_is_found_in_the_cache(real_address: str) -> None:
    """What the client counts, the server counts too."""
    workload = SharedPrefix(
        users=12,
        prefix_tokens=Amount.fixed(64),
        suffix_tokens=Amount.fixed(8),
        output_tokens=Amount.fixed(4),
        tenants=3,
    )
    async with target(real_address) as made:
        fitted = workload.fitted_to(await made.describe())
        measurement = await Runner(fitted, made, ClosedLoop(concurrency=4)).run()

    assert measurement.target["kind"] == "prefixcache"
    assert (measurement.target["vocabulary_size"], measurement.target["context_length"]) == (1000, 512)
    assert [result.error for result in measurement.results] == [None] * 12
    assert {result.prompt_tokens for result in measurement.results} == {72}
    assert {result.output_tokens for result in measurement.results} == {4}
    assert all(
        result.cached_tokens is not None and result.cached_tokens >= 64 for result in measurement.results
    )
    assert len({result.tenant for result in measurement.results}) == 3
    for result in measurement.results:
        assert result.first_token is not None
        assert result.planned <= result.sent < result.first_token <= result.ended
    before, after = measurement.stats_before, measurement.stats_after
    assert before is not None
    assert after is not None
    assert after.tokens.prompt - before.tokens.prompt == 12 * 72
    cached = sum(result.cached_tokens or 0 for result in measurement.results)
    assert after.tokens.cached - before.tokens.cached == cached


async def test_a_conversation_of_token_ids_finds_its_own_answers_again(real_address: str) -> None:
    workload = Chat(
        conversations=4,
        turns=Amount.fixed(3),
        system_tokens=16,
        user_tokens=Amount.fixed(8),
        output_tokens=Amount.fixed(5),
    )
    async with target(real_address) as made:
        fitted = workload.fitted_to(await made.describe())
        measurement = await Runner(fitted, made, ConstantRate(rate=1000)).run()

    assert len(measurement.results) == 12
    by_turn = {(result.session, result.turn): result for result in measurement.results}
    for (session, turn), result in by_turn.items():
        assert result.error is None
        if turn:
            before = by_turn[session, turn - 1]
            assert result.prompt_tokens == before.prompt_tokens + 5 + 8
            # The last token of an answer was never run through the model.
            assert result.cached_tokens == before.prompt_tokens + 5 - 1


async def test_the_request_is_greedy_and_does_not_stop(worker: FakeWorker) -> None:
    worker.generate = lambda request, context: iter([delta("x", 1, finish=2), completion()])
    async with target(worker.address) as made:
        await send(made, [7, 8], max_tokens=9, public_tokens=1)
        await send(made, [{"role": "user", "content": "hi"}], public_messages=1)

    ids, chat = worker.requests
    assert list(ids.token_ids.ids) == [7, 8]
    assert ids.stop_conditions == inference_pb2.StopConditions(max_tokens=9, ignore_eos=True)
    assert ids.sampling.HasField("temperature")
    assert ids.sampling.temperature == 0
    assert ids.cache.public_tokens == 1
    assert (chat.chat.messages[0].content, chat.cache.public_messages) == ("hi", 1)


async def test_an_answer_is_put_together_from_its_messages(worker: FakeWorker) -> None:
    """A message without tokens, such as one of held-back text, is no token's moment."""
    answer = [delta("a", 1), delta("b"), delta("cd", 2, 3), completion(prompt=20, cached=15, generated=3)]
    worker.generate = lambda request, context: iter(answer)
    async with target(worker.address) as made:
        answered = await send(made)

    assert (answered.text, answered.token_ids) == ("abcd", (1, 2, 3))
    assert (answered.prompt_tokens, answered.cached_tokens, answered.output_tokens) == (20, 15, 3)
    assert answered.first_token is not None
    assert len(answered.token_gaps) == 1


async def test_a_refusal_has_its_status_and_its_reason(worker: FakeWorker) -> None:
    def full(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield delta("a", 1)
        abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")

    worker.generate = full
    async with target(worker.address) as made:
        with pytest.raises(Refused, match="the queue is full") as refused:
            await send(made)
    assert refused.value.code == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([delta("Hello", 5)], "the answer ended before it was complete"),
        ([], "the answer ended before it was complete"),
        ([delta("Hello", 5), completion(prompt=4, cached=5)], "5 of 4 prompt tokens are cached"),
    ],
)
async def test_an_answer_that_cannot_be_is_no_answer(
    worker: FakeWorker, messages: list[inference_pb2.GenerateResponse], reason: str
) -> None:
    """A stream that ends early and well would else be an answer of no prompt tokens."""
    worker.generate = lambda request, context: iter(messages)
    async with target(worker.address) as made:
        with pytest.raises(Refused, match=reason) as refused:
            await send(made)
    assert refused.value.code == "BAD_ANSWER"


async def test_the_deadline_of_a_request_is_kept(worker: FakeWorker) -> None:
    def hang(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        worker.cancelled.wait(30)
        yield from ()

    worker.generate = hang
    async with target(worker.address, deadline=0.2) as made:
        with pytest.raises(Refused) as refused:
            await send(made)
    assert refused.value.code == "DEADLINE_EXCEEDED"


async def test_tenants_show_their_own_keys_or_their_names(worker: FakeWorker) -> None:
    worker.generate = lambda request, context: iter([completion()])
    keys = TenantKeys(api_key="shared", by_tenant={"shop": "of-the-shop"})
    async with target(worker.address, keys=keys) as made:
        for tenant in ("shop", "bank", None):
            await send(made, tenant=tenant)

    assert worker.authorizations == ["Bearer of-the-shop", "Bearer shared", "Bearer shared"]
    assert worker.tenants == ["", "bank", ""]


async def test_nobody_listens() -> None:
    async with target("127.0.0.1:1") as made:
        with pytest.raises(UnavailableError, match=r"no worker answers at 127\.0\.0\.1:1"):
            await made.describe()


async def test_more_requests_than_a_connection_takes_open_another_one(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC would hold back the others without a word."""
    monkeypatch.setattr("prefixcache_client.load.grpc_target._CALLS_PER_CHANNEL", 2)
    all_are_here = threading.Barrier(5)
    connections: list[str] = []

    def wait_for_all(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        connections.append(context.peer())
        all_are_here.wait(30)
        yield completion()

    worker.generate = wait_for_all
    async with target(worker.address) as made:
        await asyncio.gather(*(send(made) for _ in range(5)))

    assert sorted(Counter(connections).values()) == [1, 2, 2]
