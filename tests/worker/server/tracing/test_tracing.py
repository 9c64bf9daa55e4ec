"""Traces of requests: what a collector gets of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.delegating_model import DelegatingModel
from support.served_worker import greedy_request, served
from support.span_collector import attributes_of, span_collector
from support.tiny_loaded_model import loaded

from prefixcache.v1 import inference_pb2
from prefixcache_client import AsyncClient, InvalidArgumentError
from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.engine.request import Completion, Timing, Usage
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.scripted_model import ScriptedModel
from prefixcache_worker.server.call_metadata import call_metadata
from prefixcache_worker.server.request_record import RequestRecord
from prefixcache_worker.server.tracing.request_spans import RequestSpans

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def scripted() -> Any:
    return loaded(ScriptedModel([50], vocabulary_size=260, eos_token_id=2, context_length=256))


async def collected(collector: Any, count: int) -> list[Any]:
    return await asyncio.to_thread(collector.wait_for, count)


async def test_a_request_is_a_span_with_its_life_in_the_engine_inside() -> None:
    with span_collector() as (collector, url):
        async with served(scripted(), otlp_endpoint=url, model_name="m") as worker:
            message = greedy_request([5] * 40, 3, request_id="r-7")
            call = worker.inference.Generate(
                message, metadata=(("traceparent", PARENT), ("x-tenant-id", "shop"))
            )
            assert [response async for response in call]
        spans = await collected(collector, 4)

    assert collector.services == {"prefixcache"}
    by_name = {span.name: span for span in spans}
    assert set(by_name) == {"text_completion m", "queue", "prefill", "decode"}
    request = by_name.pop("text_completion m")
    assert request.trace_id.hex() == PARENT.split("-")[1]
    assert request.parent_span_id.hex() == PARENT.split("-")[2]
    assert request.kind == request.SPAN_KIND_SERVER
    assert attributes_of(request) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "prefixcache",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.response.id": "r-7",
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.choice.count": 1,
        "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.cache_creation.input_tokens": attributes_of(request)[
            "gen_ai.usage.cache_creation.input_tokens"
        ],
        "prefixcache.method": "Generate",
        "prefixcache.tenant": "shop",
    }
    assert all(span.parent_span_id == request.span_id for span in by_name.values())
    queue, prefill, decode = (by_name[name] for name in ("queue", "prefill", "decode"))
    moments = [request.start_time_unix_nano, queue.start_time_unix_nano, queue.end_time_unix_nano]
    moments += [prefill.end_time_unix_nano, decode.end_time_unix_nano, request.end_time_unix_nano]
    assert moments == sorted(moments)
    assert prefill.start_time_unix_nano == queue.end_time_unix_nano
    assert decode.start_time_unix_nano == prefill.end_time_unix_nano


async def test_a_refused_request_is_a_span_with_its_code_and_no_fault_of_the_server() -> None:
    with span_collector() as (collector, url):
        async with served(scripted(), otlp_endpoint=url) as worker:
            with pytest.raises(grpc.aio.AioRpcError):
                await worker.answer(inference_pb2.GenerateRequest(text="a", n=1000))
        [span] = await collected(collector, 1)
    assert attributes_of(span)["error.type"] == "INVALID_ARGUMENT"
    assert span.status.code == span.status.STATUS_CODE_UNSET


class BrokenModel(DelegatingModel):
    """Fails at every step."""

    def forward(self, batch: Any, attention: Any) -> Any:
        raise RuntimeError("no step works")


async def test_a_failed_request_is_an_error() -> None:
    model = BrokenModel(ScriptedModel([50], vocabulary_size=260, eos_token_id=2, context_length=256))
    with span_collector() as (collector, url):
        async with served(loaded(model), otlp_endpoint=url) as worker:
            with pytest.raises(grpc.aio.AioRpcError):
                await worker.answer(greedy_request([5, 6], 3))
        [span] = await collected(collector, 1)
    assert attributes_of(span)["error.type"] == "INTERNAL"
    assert span.status.code == span.status.STATUS_CODE_ERROR


async def test_a_collector_that_is_not_there_keeps_nobody_waiting() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with asyncio.timeout(30), served(scripted(), otlp_endpoint=url) as worker:
            answer = await worker.answer(greedy_request([5, 6], 3))
    assert answer.token_ids == [50, 2, 2]  # as ever


@contextmanager
def traced_program() -> Iterator[InMemorySpanExporter]:
    """This process as a program that has set up OpenTelemetry."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:  # the global provider can be set only once
        patch.setattr(trace, "get_tracer", provider.get_tracer)
        yield exporter


async def test_one_trace_goes_from_the_client_to_the_engine() -> None:
    with span_collector() as (collector, url), traced_program() as exporter:
        async with served(scripted(), otlp_endpoint=url) as worker, AsyncClient(worker.address) as client:
            with trace.get_tracer("program").start_as_current_span("program"):
                await client.generate([5, 6, 7], max_tokens=2, request_id="r")
        spans = await collected(collector, 4)

    sent, program = exporter.get_finished_spans()
    assert (sent.name, program.name) == ("text_completion", "program")
    assert sent.parent is not None
    assert sent.parent.span_id == program.context.span_id
    assert sent.attributes is not None
    assert sent.attributes["gen_ai.usage.input_tokens"] == 3
    assert sent.attributes["server.address"] == "127.0.0.1"
    [received] = [span for span in spans if span.name.startswith("text_completion")]
    assert received.trace_id == sent.context.trace_id.to_bytes(16, "big")
    assert received.parent_span_id == sent.context.span_id.to_bytes(8, "big")


async def test_what_a_call_raises_is_in_its_client_s_span() -> None:
    with traced_program() as exporter:
        async with served(scripted()) as worker, AsyncClient(worker.address) as client:
            with pytest.raises(InvalidArgumentError):
                await client.generate([5, 6, 7], n=1000)
    [span] = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["error.type"] == "InvalidArgumentError"
    assert span.status.status_code is trace.StatusCode.ERROR


@pytest.mark.parametrize("seconds_until_sent", [0.0, 5.0])
def test_parts_lie_where_the_engine_had_them_however_slow_the_reader(seconds_until_sent: float) -> None:
    """The engine is done after 4 s; its client has read all later."""
    now, offset = 100.0, 900 - seconds_until_sent
    record = RequestRecord.begin(
        tenant="t", method="chat.completions", request_id="r", call=call_metadata(()), clock=lambda: now,
        count=lambda method, code: None,
    )  # fmt: skip
    record.begun = 96.0
    timing = Timing(queue_seconds=1.0, first_token_seconds=2.0, total_seconds=4.0)
    usage = Usage(prompt_tokens=1, cached_tokens=0, computed_tokens=1, completion_tokens=3)
    record.note_completion(Completion(request_id="r", usage=usage, timing=timing))
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = RequestSpans(provider, model="m", wall_clock_ns=lambda: 1000 * 10**9)

    spans.add(record, grpc.StatusCode.OK, now=now + seconds_until_sent)

    moments = {
        span.name: ((span.start_time or 0) / 1e9 - offset, (span.end_time or 0) / 1e9 - offset)
        for span in exporter.get_finished_spans()
    }
    assert moments == {
        "queue": (96, 97),
        "prefill": (97, 98),
        "decode": (98, 100),
        "chat m": (96, 100 + seconds_until_sent),
    }


@pytest.mark.parametrize("url", ["127.0.0.1:4317", "ftp://127.0.0.1:4317", "http://nowhere", ""])
def test_an_endpoint_is_a_url_with_a_port(url: str) -> None:
    with pytest.raises(
        ConfigError, match=r"--otlp-endpoint: .* is not http://HOST:PORT or https://HOST:PORT"
    ):
        WorkerConfig(otlp_endpoint=url)
