"""Streams that are aborted, read slowly, out of time, or cut off by a fault; each ends once and says how."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_status import rpc_status
from support.delegating_model import DelegatingModel
from support.hand_engine import stream
from support.served_worker import DEADLINE_SECONDS, GatedModel, ServedWorker, greedy_request, rest_of, served
from support.tiny_loaded_model import EOS_ID, loaded
from support.tiny_model import tiny_decoder

from prefixcache import TenantQuota
from prefixcache.v1 import inference_pb2 as pb
from prefixcache.v1 import inference_pb2_grpc
from prefixcache_worker.model.scripted_model import ScriptedModel
from prefixcache_worker.server.grpc.inference_servicer import MAX_SCORES_PER_MESSAGE


@asynccontextmanager
async def fixed_window(worker: ServedWorker) -> AsyncIterator[Any]:
    """A client whose gRPC takes 64 KiB ahead of its reader, however fast the worker is."""
    options = [("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(worker.address, options=options) as channel:
        yield inference_pb2_grpc.InferenceServiceStub(channel)


def scripted(num_tokens: int = 4000) -> ScriptedModel:
    script = [4 + i % 256 for i in range(num_tokens)]
    return ScriptedModel(script, vocabulary_size=1000, eos_token_id=EOS_ID, context_length=16384)


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """`ErrorInfo.reason`."""
    status = rpc_status.from_call(error)
    info = error_details_pb2.ErrorInfo()
    assert status is not None
    assert any(detail.Unpack(info) for detail in status.details)
    return info.reason


async def failure_of(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_b69_health_and_abort_are_answered_while_every_slot_is_busy():
    """Four slots with long answers, a fifth request waits; the abort of one lets it start."""
    model = GatedModel(scripted())
    async with served(loaded(model), max_running=4) as worker:
        calls = [
            worker.generate(greedy_request(stream("abcd"[i], 20), 4000, request_id=str(i))) for i in range(4)
        ]
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(worker.worker.engine_loop._streams) < 4:
                await worker.health()
        model.allow(2)  # the one that has begun, and one for those that came during it
        for call in calls:
            await call.read()
        fifth = worker.generate(greedy_request(stream("e", 20), 2))
        assert await worker.health() == health_pb2.HealthCheckResponse.SERVING
        assert await abort(worker, "2", tenant="another") is False
        assert await abort(worker, "2") is True
        aborted = await failure_of(rest_of(calls[2]))
        assert await abort(worker, "2") is False
        model.allow(20)
        assert sum(len(response.delta.token_ids) for response in await rest_of(fifth)) == 2
        for number in "013":
            assert await abort(worker, number) is True
        model.allow(1000)
    assert (aborted.code(), reason_of(aborted)) == (grpc.StatusCode.CANCELLED, "ABORTED")


async def abort(worker: ServedWorker, request_id: str, *, tenant: str | None = None) -> bool:
    metadata = [] if tenant is None else [("x-tenant-id", tenant)]
    message = pb.AbortRequest(request_id=request_id)
    return (await worker.inference.Abort(message, metadata=metadata, timeout=DEADLINE_SECONDS)).was_live


@pytest.mark.parametrize("request_id", ["", "x" * 1000])
async def test_an_abort_without_a_possible_id_is_refused(request_id: str):
    async with served(loaded(scripted())) as worker:
        error = await failure_of(worker.inference.Abort(pb.AbortRequest(request_id=request_id)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "request_id" in (error.details() or "")


async def test_b67_a_client_that_stops_reading_is_paused_then_reads_on_to_the_end():
    """What it leaves unread fills what HTTP/2 lets through and then the cap; others go on meanwhile."""
    request = greedy_request(stream("a", 20), 3000, logprobs=20)
    async with (
        served(loaded(scripted()), kv_blocks=1000, max_unread_tokens=64) as worker,
        fixed_window(worker) as stub,
    ):
        slow = stub.Generate(request, timeout=DEADLINE_SECONDS)
        first = await slow.read()
        [stream_of_slow] = worker.worker.engine_loop._streams.values()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while stream_of_slow._stall is None:
                await worker.health()
        assert 64 <= stream_of_slow._num_unread_tokens <= 64 + 8
        assert (await worker.stats()).requests.running == 1
        others = [worker.answer(greedy_request(stream(name, 20), 50)) for name in "bcdesuv"]
        assert [len(answer.token_ids) for answer in await asyncio.gather(*others)] == [50] * 7
        assert stream_of_slow._num_unread_tokens <= 64 + 8
        responses = await rest_of(slow)
        assert await slow.code() is grpc.StatusCode.OK
    token_ids = [token for response in [first, *responses] for token in response.delta.token_ids]
    assert token_ids == [4 + i % 256 for i in range(3000)]
    assert max(response.ByteSize() for response in responses) < 100_000


async def test_b67_a_client_that_never_reads_on_is_ended_with_a_clear_status():
    """Its blocks are free although it takes no notice; when it does, it learns why."""
    request = greedy_request(stream("a", 20), 3000, logprobs=20)
    async with (
        served(loaded(scripted()), kv_blocks=1000, max_unread_tokens=16, stall_seconds=0.05) as worker,
        fixed_window(worker) as stub,
    ):
        slow = stub.Generate(request, timeout=DEADLINE_SECONDS)
        await slow.read()
        stats = await worker.stats_when(lambda stats: stats.requests.cancelled == 1)
        assert (stats.blocks.live, stats.requests.running) == (0, 0)
        error = await failure_of(rest_of(slow))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert reason_of(error) == "SLOW_READER"


async def test_b108_a_deadline_ends_a_request_with_its_own_status_and_logs_nothing(
    caplog: pytest.LogCaptureFixture,
):
    model = GatedModel(scripted())
    async with served(loaded(model), kv_blocks=1200) as worker:
        call = worker.inference.Generate(greedy_request(stream("a", 40), 4000), timeout=0.3)
        await model.begin(1)
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        model.allow(1000)
        stats = await worker.stats_when(lambda stats: stats.requests.cancelled == 1)
    assert (stats.requests.running, stats.blocks.live) == (0, 0)
    assert stats.tokens.generated <= 1, "what the step under way computed"
    assert not caplog.records


async def test_b108_requests_that_wait_longer_than_they_may_never_start():
    """Twenty behind one that has the only slot: their prompts are never computed."""
    model = GatedModel(scripted())
    async with served(loaded(model), max_running=1) as worker:
        running = worker.generate(greedy_request(stream("a", 40), 4))
        await model.begin(1)
        waiting = [
            worker.inference.Generate(greedy_request(stream("b", 40), 4), timeout=0.2) for _ in range(20)
        ]
        codes = await asyncio.gather(*(call.code() for call in waiting))
        await worker.clients_gone(1)
        model.allow(1000)
        await rest_of(running)
        stats = await worker.stats()
    assert codes == [grpc.StatusCode.DEADLINE_EXCEEDED] * 20
    assert stats.tokens.prompt == 40
    assert (stats.requests.waiting, stats.requests.running, stats.blocks.live) == (0, 0, 0)


class FailingModel(DelegatingModel):
    """Another model that breaks in one of its steps."""

    def __init__(self, model: ScriptedModel, *, failing_step: int) -> None:
        super().__init__(model)
        self._num_left = failing_step

    def forward(self, *arguments: Any) -> Any:
        self._num_left -= 1
        if self._num_left == 0:
            raise RuntimeError("a secret of the model")
        return super().forward(*arguments)


async def test_b107_a_model_that_fails_in_the_middle_ends_the_stream_with_an_error():
    async with served(loaded(FailingModel(scripted(), failing_step=5))) as worker:
        call = worker.generate(greedy_request(stream("a", 20), 9))
        error = await failure_of(rest_of(call))
        assert len((await worker.answer(greedy_request(stream("a", 20), 9))).token_ids) == 9
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in (error.details() or "")


async def test_b107_a_tenant_at_its_ceiling_in_the_middle_ends_the_stream_with_an_error():
    """It may have one block, and the sixth token needs another."""
    responses: list[pb.GenerateResponse] = []

    async def read() -> None:
        call = worker.generate(greedy_request(stream("a", 12), 9), tenant="small")
        while (response := await call.read()) is not grpc.aio.EOF:
            responses.append(response)

    async with served(loaded(scripted())) as worker:
        quota = TenantQuota(ceiling_blocks=1)
        await worker.worker.engine_loop.call(lambda engine: engine.cache.set_quota("small", quota))
        error = await failure_of(read())
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert sum(len(response.delta.token_ids) for response in responses) == 5
    assert all(response.WhichOneof("event") == "delta" for response in responses)
    assert all(response.delta.finish_reason == 0 for response in responses)


async def test_b109_the_scores_of_a_long_prompt_come_in_parts():
    """About two megabytes in all, of a step of the whole prompt; no part above 300 KiB."""
    num_tokens = 8000
    model = ScriptedModel([7], vocabulary_size=1000, eos_token_id=EOS_ID, context_length=16384)
    prompt = [4 + i % 900 for i in range(num_tokens)]
    async with served(loaded(model), kv_blocks=600, max_batch_tokens=8192) as worker:
        responses = await rest_of(worker.generate(greedy_request(prompt, 1, prompt_logprobs=20)))
    parts = [response for response in responses if response.WhichOneof("event") == "prompt_logprobs"]
    scores = [score for part in parts for score in part.prompt_logprobs.logprobs]
    assert len(scores) == num_tokens
    assert len(parts) == -(-num_tokens // MAX_SCORES_PER_MESSAGE)
    assert sum(part.ByteSize() for part in parts) > 1_000_000
    assert max(part.ByteSize() for part in parts) < 300 * 1024


async def test_b100_choices_of_one_stream_end_once_each():
    request = greedy_request(stream("a", 40), 12, n=4, sampling=pb.SamplingParams(temperature=1.0, seed=1))
    async with served(loaded(tiny_decoder(context_length=512))) as worker:
        responses = await rest_of(worker.generate(request))
    ends = [response.delta.index for response in responses if response.delta.finish_reason]
    num_tokens = sum(len(response.delta.token_ids) for response in responses)
    assert sorted(ends) == [0, 1, 2, 3]
    assert [response.WhichOneof("event") for response in responses].count("completion") == 1
    assert responses[-1].completion.usage.completion_tokens == num_tokens == 48


async def test_b99_calls_that_are_cancelled_at_any_moment_leave_nothing():
    """Before they arrive, while they wait, run, or end: everything the worker keeps of a request is gone."""
    async with served(loaded(scripted()), max_running=2, max_waiting=500) as worker:

        async def call_and_leave(number: int) -> grpc.StatusCode:
            call = worker.generate(greedy_request(stream("abcde"[number % 5], 20), 1 + number % 40))
            for _ in range(number % 21):
                await asyncio.sleep(0)
            if number % 3 == 0:
                await call.read()
            call.cancel()
            return await call.code()

        codes = await asyncio.gather(*map(call_and_leave, range(200)))
        await worker.clients_gone()
        answer = await worker.answer(greedy_request(stream("a", 20), 3))
        stats = await worker.stats()
        await worker.worker.engine_loop.call(lambda engine: engine.check())
    assert set(codes) <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.OK}
    assert answer.token_ids == [4, 5, 6]
    assert (stats.requests.running, stats.requests.waiting, stats.blocks.live) == (0, 0, 0)
