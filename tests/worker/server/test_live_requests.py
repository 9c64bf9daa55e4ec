"""ListRequests: states, counts, and what live requests share, over a worker whose steps the test allows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from support.named_callers import ADMIN, as_caller, served_to_named
from support.served_worker import GatedModel, ServedWorker, greedy_request, rest_of
from support.tiny_loaded_model import loaded

from prefixcache.v1 import diagnosis_pb2, diagnosis_pb2_grpc
from prefixcache_worker.model.scripted_model import ScriptedModel

A, B = as_caller("a"), as_caller("b")
COMMON = [7] * 64
"""Four blocks."""

Live = diagnosis_pb2.ListRequestsResponse


def gated() -> GatedModel:
    return GatedModel(
        ScriptedModel([50, 51, 52, 53], vocabulary_size=260, eos_token_id=2, context_length=1024)
    )


def start(
    worker: ServedWorker, name: str, caller: dict[str, Any], prompt: list[int], **fields: Any
) -> asyncio.Task[Any]:
    """Let somebody ask and read; cancelling it cancels the call."""
    message = greedy_request(prompt, 900, request_id=name, **fields)
    return asyncio.create_task(rest_of(worker.inference.Generate(message, metadata=caller["metadata"])))


async def live_when(
    worker: ServedWorker, model: GatedModel, reached: Callable[[Live], bool], caller: dict[str, Any] = ADMIN
) -> Live:
    """The first answer that `reached` holds for, one step after the other."""
    stub = diagnosis_pb2_grpc.DiagnosisServiceStub(worker.channel)
    async with asyncio.timeout(30):
        while True:
            live: Live = await model.stepping(ask(stub, caller))
            if reached(live):
                return live


async def ask(stub: Any, caller: dict[str, Any]) -> Live:
    response: Live = await stub.ListRequests(diagnosis_pb2.ListRequestsRequest(), **caller)
    return response


def all_decode(num_requests: int) -> Callable[[Live], bool]:
    return lambda live: (
        [request.state for request in live.requests] == num_requests * [diagnosis_pb2.REQUEST_STATE_DECODING]
    )


async def test_requests_are_listed_with_what_they_share() -> None:
    model = gated()
    async with served_to_named(loaded(model)) as worker:
        first = start(worker, "first", A, [*COMMON, 8], priority=2)
        await live_when(worker, model, all_decode(1))
        second = start(worker, "second", A, [*COMMON, 9])
        third = start(worker, "third", B, COMMON)
        live = await live_when(worker, model, all_decode(3))
        to_a = await live_when(worker, model, all_decode(2), A)
        model.allow(10_000)
        for call in (first, second, third):
            call.cancel()
        nothing = await live_when(worker, model, lambda live: not live.requests)
    by_name = {request.request_id: request for request in live.requests}
    one, two, other = by_name["first"], by_name["second"], by_name["third"]
    assert live.requests[0] == one, "the oldest comes first"
    assert (one.tenant, one.prompt_tokens, one.cached_tokens, one.priority) == ("a", 65, 0, 2)
    assert (two.cached_tokens, other.cached_tokens) == (64, 0)
    assert [request.num_shared_blocks for request in (one, two, other)] == [4, 4, 0]
    assert one.computed_tokens == one.prompt_tokens + one.output_tokens - 1
    assert one.num_blocks == -(-one.computed_tokens // 16)
    assert one.age_seconds > two.age_seconds > 0
    assert one.age_seconds >= one.queue_seconds
    assert one.num_choices == 1
    assert [request.request_id for request in to_a.requests] == ["first", "second"]
    assert nothing.num_left_out == 0


async def test_choices_of_one_request_are_one_holder() -> None:
    model = gated()
    async with served_to_named(loaded(model)) as worker:
        call = start(worker, "both", A, COMMON, n=2)
        live = await live_when(
            worker, model, lambda live: any(request.output_tokens > 3 for request in live.requests)
        )
        model.allow(10_000)
        call.cancel()
    [request] = live.requests
    assert (request.num_choices, request.prompt_tokens) == (2, 64)
    assert request.num_shared_blocks == 0
    assert request.num_blocks == 6  # four in common, and a tail of each choice
    assert request.computed_tokens == 2 * 64 + request.output_tokens - 2


async def test_what_waits_for_a_slot_is_waiting() -> None:
    model = gated()
    async with served_to_named(loaded(model), max_running=1) as worker:
        running = start(worker, "running", A, COMMON)
        await live_when(worker, model, all_decode(1))
        waiting = start(worker, "waiting", A, COMMON)
        live = await live_when(worker, model, lambda live: len(live.requests) == 2)
        model.allow(10_000)
        for call in (running, waiting):
            call.cancel()
    [_, request] = live.requests
    assert request.state == diagnosis_pb2.REQUEST_STATE_WAITING
    assert (request.num_blocks, request.computed_tokens, request.HasField("queue_seconds")) == (0, 0, False)
