"""Requests that end early, wait, or are read slowly; and a worker that stops while they run."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_status import rpc_status
from support.hand_engine import reference, stream
from support.served_worker import DEADLINE_SECONDS, GatedModel, ServedWorker, greedy_request, rest_of, served
from support.tcp_relay import tcp_relay
from support.tiny_loaded_model import EOS_ID, loaded
from support.tiny_model import tiny_decoder

from prefixcache.v1 import cache_pb2, inference_pb2_grpc
from prefixcache.v1 import inference_pb2 as pb
from prefixcache_worker.model.scripted_model import ScriptedModel
from prefixcache_worker.server.access.access import OpenAccess
from prefixcache_worker.server.access.admission import Admission
from prefixcache_worker.server.access.tenant_quotas import TenantQuotas
from prefixcache_worker.server.grpc.inference_servicer import InferenceServicer


def scripted(num_tokens: int = 4096) -> ScriptedModel:
    return ScriptedModel([7] * num_tokens, vocabulary_size=1000, eos_token_id=EOS_ID, context_length=8192)


async def stats_two_steps_later(worker: ServedWorker, model: GatedModel) -> cache_pb2.GetStatsResponse:
    """What there is when the server knows that its clients left, and the engine took two steps at most."""
    await worker.clients_gone()
    model.allow(2)
    return await worker.stats()


@pytest.mark.parametrize("num_chunks", [1, 2, 3])
async def test_b45_a_client_that_leaves_during_its_prefill_gives_every_block_back(
    num_chunks: int, caplog: pytest.LogCaptureFixture
):
    """It leaves while the chunk is computed; that step ends, and the next chunk is never begun."""
    model = GatedModel(tiny_decoder(context_length=160))
    async with served(loaded(model), kv_blocks=10, kv_headroom=0.0, max_batch_tokens=32) as worker:
        call = worker.generate(greedy_request(stream("a", 128), 8))
        model.allow(num_chunks - 1)
        await model.begin(num_chunks)
        call.cancel()
        assert await call.code() is grpc.StatusCode.CANCELLED
        stats = await stats_two_steps_later(worker, model)

        assert (stats.requests.running, stats.requests.waiting, stats.blocks.live) == (0, 0, 0)
        assert (stats.requests.cancelled, stats.requests.finished) == (1, 0)
        assert stats.requests.steps == num_chunks
        assert stats.blocks.idle == 2 * num_chunks  # what was computed stays in the tree
        model.allow(1000)
        answer = await worker.answer(greedy_request(stream("b", 128), 1))
    assert answer.token_ids == reference(stream("b", 128), 1)
    assert not caplog.records, "a client that leaves is nothing to log"


@pytest.mark.parametrize("num_read", [3, 0])
@pytest.mark.parametrize("way", ["cancel", "close", "reset"])
async def test_b64_a_client_that_leaves_frees_everything_within_two_steps(way: str, num_read: int):
    """It cancels, closes its channel or dies, after three tokens or while it waits for the whole answer."""
    model = GatedModel(scripted())
    async with (
        served(loaded(model)) as worker,
        tcp_relay(worker.address) as relay,
        grpc.aio.insecure_channel(relay.address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Generate(greedy_request(stream("a", 40), 4000), timeout=DEADLINE_SECONDS)
        model.allow(3)
        num_received = 0
        while num_received < num_read:
            num_received += len((await call.read()).delta.token_ids)
        await model.begin(4)
        match way:
            case "cancel":
                call.cancel()
            case "close":
                await channel.close()
            case "reset":
                relay.reset()
        left = grpc.StatusCode.UNAVAILABLE if way == "reset" else grpc.StatusCode.CANCELLED
        assert await call.code() is left
        stats = await stats_two_steps_later(worker, model)

    assert (stats.requests.running, stats.requests.waiting, stats.blocks.live) == (0, 0, 0)
    assert (stats.requests.cancelled, stats.requests.finished) == (1, 0)
    assert stats.requests.steps <= 3 + 2
    assert stats.tokens.generated <= 3 + 2


async def test_b64_a_deadline_frees_everything_within_two_steps():
    model = GatedModel(scripted())
    async with served(loaded(model)) as worker:
        call = worker.inference.Generate(greedy_request(stream("a", 40), 4000), timeout=0.3)
        await model.begin(1)
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        stats = await stats_two_steps_later(worker, model)
    assert (stats.requests.running, stats.requests.waiting, stats.blocks.live) == (0, 0, 0)
    assert (stats.requests.cancelled, stats.requests.finished) == (1, 0)
    assert stats.requests.steps <= 2


async def test_b64_a_hundred_clients_that_leave_in_a_row_leave_nothing(caplog: pytest.LogCaptureFixture):
    async with served(loaded(scripted()), kv_blocks=512) as worker:
        for number in range(100):
            call = worker.generate(greedy_request(stream("a", 20 + number % 7), 4000))
            for _ in range(1 + number % 3):
                await call.read()
            call.cancel()
        stats = await worker.stats_when(lambda stats: stats.requests.cancelled == 100)
    assert (stats.requests.running, stats.requests.waiting, stats.blocks.live) == (0, 0, 0)
    assert not caplog.records, "a client that leaves is nothing to log"


async def test_a_second_request_with_a_live_id_is_refused_and_the_first_goes_on():
    model = GatedModel(tiny_decoder(context_length=512))
    prompt = stream("b", 20)
    async with served(loaded(model)) as worker:
        call = worker.generate(greedy_request(prompt, 4, request_id="x"))
        model.allow(1)
        first = await call.read()
        error = await worker.refusal(greedy_request(stream("c", 20), 4, request_id="x"))
        model.allow(1000)
        deltas = [first.delta, *[response.delta for response in await rest_of(call)]]
        again = await worker.answer(greedy_request(prompt, 4, request_id="x"))

    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    assert "'x'" in error.details()
    assert [token for delta in deltas for token in delta.token_ids] == reference(prompt, 4)
    assert again.token_ids == reference(prompt, 4), "an id is free again when its request has ended"


async def test_a_full_queue_is_refused_with_a_time_to_retry():
    model = GatedModel(scripted())
    async with served(loaded(model), max_running=1, max_waiting=1) as worker:
        answers = [
            asyncio.ensure_future(worker.answer(greedy_request(stream(name, 20), 2))) for name in "abc"
        ]
        [refused], others = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        model.allow(1000)
        assert [len((await answer).token_ids) for answer in others] == [2, 2]
    error = refused.exception()
    assert isinstance(error, grpc.aio.AioRpcError)
    status = rpc_status.from_call(error)
    retry_info = error_details_pb2.RetryInfo()
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert status is not None
    assert any(detail.Unpack(retry_info) for detail in status.details)
    assert retry_info.retry_delay.seconds >= 1


async def test_draining_finishes_what_runs_and_refuses_what_comes():
    model = GatedModel(tiny_decoder(context_length=512))
    prompt = stream("d", 20)
    async with served(loaded(model)) as worker:
        call = worker.generate(greedy_request(prompt, 6))
        model.allow(1)
        first = await call.read()
        stopping = asyncio.create_task(worker.service.stop(drain_seconds=DEADLINE_SECONDS))
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await worker.health("") == health_pb2.HealthCheckResponse.SERVING:
                pass
        error = await worker.refusal(greedy_request(prompt, 1))
        model.allow(1000)
        deltas = [first.delta, *[response.delta for response in await rest_of(call)]]
        await stopping

    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert [token for delta in deltas for token in delta.token_ids] == reference(prompt, 6)
    assert await call.code() is grpc.StatusCode.OK


async def test_what_does_not_finish_while_draining_is_unavailable():
    model = GatedModel(scripted())
    async with served(loaded(model)) as worker:
        call = worker.generate(greedy_request(stream("d", 20), 4000))
        model.allow(1)
        await call.read()
        stopping = asyncio.create_task(worker.service.stop(drain_seconds=0.0))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rest_of(call)
        model.allow(1)
        await stopping
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "send it again" in caught.value.details()


async def test_what_comes_while_the_reader_is_slow_is_one_message():
    prompt = stream("a", 20)
    written: list[pb.GenerateResponse] = []
    reader_is_back = asyncio.Event()

    async def write(response: pb.GenerateResponse) -> None:
        written.append(response)
        await reader_is_back.wait()

    context = AsyncMock(spec=grpc.aio.ServicerContext, write=write)
    context.invocation_metadata = tuple
    context.time_remaining = lambda: None
    async with served(loaded(tiny_decoder(context_length=512))) as worker:
        servicer = InferenceServicer(
            engine_loop=worker.worker.engine_loop,
            model=worker.worker.model,
            access=OpenAccess(),
            admission=Admission(TenantQuotas(worker.worker.engine_loop, num_blocks=64)),
        )
        answering = asyncio.create_task(servicer.Generate(greedy_request(prompt, 16), context))
        await worker.stats_when(lambda stats: stats.requests.finished == 1)
        reader_is_back.set()
        await answering

    first, rest, end = written
    assert [*first.delta.token_ids, *rest.delta.token_ids] == reference(prompt, 16)
    assert (first.delta.finish_reason, rest.delta.finish_reason) == (0, pb.FINISH_REASON_LENGTH)
    assert end.completion.usage.completion_tokens == 16
