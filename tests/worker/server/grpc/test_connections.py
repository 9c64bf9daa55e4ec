"""Limits of connections and of what comes over them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_status import rpc_status
from support.hand_engine import reference, stream
from support.raw_http2 import ENHANCE_YOUR_CALM, GOAWAY, PING, RawHttp2
from support.served_worker import DEADLINE_SECONDS, GatedModel, greedy_request, rest_of, served
from support.tcp_relay import tcp_relay
from support.tiny_loaded_model import EOS_ID, loaded
from support.tiny_model import tiny_decoder

from prefixcache.v1 import inference_pb2 as pb
from prefixcache.v1 import inference_pb2_grpc
from prefixcache_client.channel import CHANNEL_OPTIONS, MAX_RESPONSE_BYTES
from prefixcache_client.channel import MAX_REQUEST_BYTES as CLIENT_MAX_REQUEST_BYTES
from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.model.scripted_model import ScriptedModel
from prefixcache_worker.server.grpc import connections
from prefixcache_worker.server.grpc.connections import (
    MAX_METADATA_BYTES,
    MAX_REQUEST_BYTES,
    MIN_PING_SECONDS,
    ConnectionAge,
    connection_age,
    server_options,
)
from prefixcache_worker.server.large_requests import LargeRequests

METHODS = (
    "/prefixcache.v1.InferenceService/Generate",
    "/prefixcache.v1.InferenceService/Abort",
    "/prefixcache.v1.CacheService/GetStats",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
)


async def raw_call(channel: grpc.aio.Channel, method: str, data: bytes) -> Any:
    """The first answer to bytes, as bytes. Raises grpc.RpcError."""
    return await channel.unary_unary(method)(data, timeout=DEADLINE_SECONDS)


async def failure_of(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def scripted() -> ScriptedModel:
    return ScriptedModel([7] * 64, vocabulary_size=1000, eos_token_id=EOS_ID)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("data", [b"\xff", b"\x0a\xff"])
async def test_bytes_that_are_no_message_are_an_invalid_argument(
    method: str, data: bytes, caplog: pytest.LogCaptureFixture
):
    async with served(loaded(scripted()), kv_blocks=300) as worker:
        error = await failure_of(raw_call(worker.channel, method, data))
        assert await worker.health() == health_pb2.HealthCheckResponse.SERVING
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    status = rpc_status.from_call(error)
    assert status is not None
    bad_request = error_details_pb2.BadRequest()
    assert any(detail.Unpack(bad_request) for detail in status.details)
    assert bad_request.field_violations[0].field == "request"
    assert not caplog.records


async def test_a_large_request_is_counted_until_its_call_ends(monkeypatch: pytest.MonkeyPatch):
    requests = LargeRequests(max_bytes=150_000)
    monkeypatch.setattr("prefixcache_worker.server.service.LargeRequests", lambda: requests)
    model = GatedModel(scripted())
    large = greedy_request(stream("a", 20), 4, request_id="long", cache=pb.CacheOptions(salt="s"))
    large.stop_conditions.stop.extend(["x" * 1000] * 16)
    padded = large.SerializeToString() + b"\x9a\x06" + b"\x80\xf1\x04" + b"\0" * 80_000  # an unknown field
    async with served(loaded(model)) as worker:
        generate = worker.channel.unary_stream(METHODS[0])
        first = generate(padded, timeout=DEADLINE_SECONDS)
        await model.begin(1)
        error = await failure_of(generate(padded, timeout=DEADLINE_SECONDS).read())
        model.allow(1000)
        await rest_of(first)
        second = generate(padded, timeout=DEADLINE_SECONDS)
        await rest_of(second)
        assert await second.code() is grpc.StatusCode.OK
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "as many requests" in (error.details() or "")
    assert requests.num_bytes == 0


@pytest.mark.parametrize("num_ids", [1_000_000, 3_000_000])
async def test_b109_far_too_many_ids_are_refused_with_both_numbers(num_ids: int):
    async with served(loaded(scripted()), kv_blocks=300) as worker:
        assert worker.worker.model.context_length == 4096
        message = greedy_request([], 1)
        message.token_ids.ids.extend([999] * num_ids)
        error = await worker.refusal(message)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"{num_ids} tokens" in (error.details() or "")
    assert "4096" in (error.details() or "")


async def test_b109_a_message_above_the_cap_is_resource_exhausted_on_either_side():
    data = bytes(MAX_REQUEST_BYTES + 1)
    options = [("grpc.max_send_message_length", -1)]
    async with served(loaded(scripted())) as worker:
        async with grpc.aio.insecure_channel(worker.address, options=options) as channel:
            refused = await failure_of(raw_call(channel, METHODS[1], data))
        async with grpc.aio.insecure_channel(worker.address, options=CHANNEL_OPTIONS) as channel:
            not_sent = await failure_of(raw_call(channel, METHODS[1], data))
        assert await worker.health() == health_pb2.HealthCheckResponse.SERVING
    assert refused.code() is not_sent.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for error in (refused, not_sent):
        assert str(MAX_REQUEST_BYTES) in (error.details() or "")


def test_b109_client_and_worker_have_the_same_limits():
    assert CLIENT_MAX_REQUEST_BYTES == MAX_REQUEST_BYTES
    assert MAX_RESPONSE_BYTES == connections.MAX_RESPONSE_BYTES
    assert dict(CHANNEL_OPTIONS)["grpc.keepalive_time_ms"] >= 1000 * MIN_PING_SECONDS


async def test_metadata_above_the_cap_is_refused_and_what_is_below_is_not():
    async with served(loaded(scripted())) as worker:
        check = worker.channel.unary_unary(METHODS[3])

        def call(num_bytes: int) -> Any:
            return check(b"", metadata=[("x-filling", "x" * num_bytes)], timeout=DEADLINE_SECONDS)

        assert await call(MAX_METADATA_BYTES // 2)
        error = await failure_of(call(MAX_METADATA_BYTES + 1))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("is_patient", [True, False])
async def test_a_client_that_pings_as_often_as_it_may_is_not_told_to_calm_down(is_patient: bool):
    """With a shorter time than the worker's own; a client that does not keep to it loses its connection."""
    options = dict(server_options()) | {"grpc.http2.min_ping_interval_without_data_ms": 50}
    assert len(options) == len(server_options()), "the worker has this option"
    server = grpc.aio.server(options=list(options.items()))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    connection = await RawHttp2.connect(address)
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            answers = [await connection.ping()]
            while len(answers) < 8 and answers[-1].kind == PING:
                if is_patient:
                    await asyncio.sleep(0.06)
                answers.append(await connection.ping())
    finally:
        connection.close()
        await server.stop(0)
    if is_patient:
        assert [answer.kind for answer in answers] == [PING] * 8
    else:
        assert (answers[-1].kind, answers[-1].error_code) == (GOAWAY, ENHANCE_YOUR_CALM)


def test_connections_grow_as_old_as_they_like_unless_told_otherwise():
    assert connection_age(WorkerConfig()) is None
    assert "grpc.max_connection_age_ms" not in dict(server_options())
    age = connection_age(WorkerConfig(max_connection_age=60.0, connection_age_grace=5.0))
    assert age == ConnectionAge(max_seconds=60.0, grace_seconds=5.0)
    assert dict(server_options(age))["grpc.max_connection_age_ms"] == 60_000
    assert dict(server_options(age))["grpc.max_connection_age_grace_ms"] == 5_000


async def test_a_stream_on_a_connection_that_has_reached_its_age_ends_normally():
    """And the next call of the same channel takes a new connection."""
    model = GatedModel(tiny_decoder(context_length=512))
    prompt = stream("d", 20)
    age = ConnectionAge(max_seconds=0.2, grace_seconds=DEADLINE_SECONDS)
    async with (
        served(loaded(model), connection_age=age) as worker,
        tcp_relay(worker.address) as relay,
        grpc.aio.insecure_channel(relay.address) as channel,
    ):
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(
            greedy_request(prompt, 6), timeout=DEADLINE_SECONDS
        )
        model.allow(1)
        first = await call.read()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while relay.num_connections == 1:
                await raw_call(channel, METHODS[3], b"")
        model.allow(1000)
        deltas = [first.delta, *[response.delta for response in await rest_of(call)]]
        assert await call.code() is grpc.StatusCode.OK
    assert [token for delta in deltas for token in delta.token_ids] == reference(prompt, 6)


async def test_b110_one_channel_spreads_its_calls_over_all_workers():
    """As to a name of several workers. A new connection, each `--max-connection-age`, looks it up again."""
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(served(loaded(tiny_decoder()))) for _ in range(3)]
        target = "ipv4:" + ",".join(worker.address for worker in workers)
        channel = await stack.enter_async_context(
            grpc.aio.insecure_channel(target, [("grpc.lb_policy_name", "round_robin")])
        )
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for number in range(90):
            await rest_of(stub.Generate(greedy_request([5, 6, 7 + number], 1), timeout=DEADLINE_SECONDS))
        num_answered = [(await worker.stats()).requests.finished for worker in workers]
    assert sum(num_answered) == 90
    assert min(num_answered) >= 15
