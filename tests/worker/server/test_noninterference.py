"""A tenant's answers are the same, whatever others do in private."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.named_callers import as_caller, served_to_named
from support.served_worker import ServedWorker, greedy_request
from support.tiny_loaded_model import loaded

from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_worker.model.scripted_model import ScriptedModel
from prefixcache_worker.server.access.caller import Role

CALLERS = {
    "watched": as_caller("watched"),
    "other": as_caller("other"),
    "publisher": as_caller("publisher", Role.PUBLISHER),
}
_VARYING = {"timing", "block_seconds", "seconds_left"}
"""Fields that tell of time."""


class Step(NamedTuple):
    """One call."""

    who: str
    method: str
    message: Message
    is_left_open: bool = False
    """Whether the answer is still streaming when the next call is made, and until the end."""


# Few tokens, in runs of half a block: so prompts begin alike, and leave each other anywhere.
prompts = st.lists(st.sampled_from([10, 11]), min_size=1, max_size=8).map(
    lambda halves: [token for token in halves for _ in range(8)]
)
salts = st.sampled_from(["", "pepper"])
modes = st.sampled_from([inference_pb2.CacheOptions.MODE_READ_WRITE, inference_pb2.CacheOptions.MODE_OFF])


@st.composite
def generate_requests(draw: st.DrawFn, *, publishes: bool = False) -> inference_pb2.GenerateRequest:
    prompt = draw(prompts)
    public = {"public_tokens": draw(st.integers(0, len(prompt)))} if publishes else {}
    return greedy_request(
        prompt,
        draw(st.integers(1, 3)),
        request_id=draw(st.sampled_from(["", "the same"])),
        n=draw(st.sampled_from([1, 1, 3])),
        cache=inference_pb2.CacheOptions(salt=draw(salts), mode=draw(modes), **public),
    )


explain_requests = st.builds(
    lambda prompt, salt: cache_pb2.ExplainRequest(
        token_ids=inference_pb2.TokenIds(ids=prompt), cache=inference_pb2.CacheOptions(salt=salt)
    ),
    prompts,
    salts,
)
tree_requests = st.builds(cache_pb2.DumpTreeRequest, max_depth=st.integers(0, 2))
create_requests = st.builds(
    lambda prompt, salt: cache_pb2.CreatePrefixRequest(
        token_ids=inference_pb2.TokenIds(ids=prompt), salt=salt, ttl_seconds=600, label="mine"
    ),
    prompts,
    salts,
)
REFUSED = [  # with one sentence, whoever else there is
    ("Generate", greedy_request([10] * 4096, 1)),
    ("Generate", greedy_request([10] * 16, 1, cache=inference_pb2.CacheOptions(public_tokens=16))),
    ("GetStats", cache_pb2.GetStatsRequest()),
    ("WatchEvents", cache_pb2.WatchEventsRequest()),
    ("Reset", cache_pb2.ResetRequest()),
    ("GetUsage", cache_pb2.GetUsageRequest(tenant="other")),
    ("GetPrefix", cache_pb2.GetPrefixRequest(prefix_id="nobody's")),
]


def private_steps(who: str) -> st.SearchStrategy[Step]:
    """What a tenant may do for itself."""
    is_left_open = st.booleans() if who == "other" else st.just(False)
    return st.one_of(
        st.builds(Step, st.just(who), st.just("Generate"), generate_requests(), is_left_open),
        st.builds(Step, st.just(who), st.just("Explain"), explain_requests, st.just(False)),
        st.builds(Step, st.just(who), st.just("DumpTree"), tree_requests, st.just(False)),
        st.builds(Step, st.just(who), st.just("CreatePrefix"), create_requests, st.just(False)),
        st.sampled_from(
            [
                Step(who, "ListPrefixes", cache_pb2.ListPrefixesRequest()),
                Step(who, "GetUsage", cache_pb2.GetUsageRequest()),
                Step(who, "Abort", inference_pb2.AbortRequest(request_id="the same")),
                *(Step(who, method, message) for method, message in REFUSED),
            ]
        ),
    )


public_steps = st.builds(
    Step, st.just("publisher"), st.just("Generate"), generate_requests(publishes=True), st.just(False)
)
scripts = st.lists(
    st.one_of(private_steps("watched"), private_steps("other"), public_steps), min_size=4, max_size=14
)


class Stage:
    """Plays a script on one worker, and writes down what the watched tenant is told."""

    def __init__(self, worker: ServedWorker, stack: AsyncExitStack) -> None:
        self._worker = worker
        self._stack = stack
        self._names: dict[str, str] = {}
        self.told: list[Any] = []

    async def play(self, script: Sequence[Step]) -> None:
        for step in script:
            answer = await self._answer(step)
            if step.who == "watched":
                self.told.append((step.method, self._plain(answer)))

    async def _answer(self, step: Step) -> Any:
        service = cache_pb2.DESCRIPTOR.services_by_name["CacheService"]
        stub = self._worker.cache if step.method in service.methods_by_name else self._worker.inference
        message = step.message
        if step.is_left_open:
            message = inference_pb2.GenerateRequest.FromString(message.SerializeToString())
            message.stop_conditions.max_tokens = 2000
        call = getattr(stub, step.method)(message, **CALLERS[step.who])
        try:
            if step.is_left_open:
                await call.read()
                self._stack.callback(call.cancel)
                return None
            if step.method not in ("Generate", "WatchEvents"):
                return await call
            events = [event async for event in call]
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details(), error.trailing_metadata()
        tokens: dict[int, list[int]] = {}
        for event in events[:-1]:  # how they are cut into messages is a matter of time
            tokens.setdefault(event.delta.index, []).extend(event.delta.token_ids)
        return tokens, events[-1]

    def _plain(self, message: Any) -> Any:
        """Messages as their fields without those of time; names drawn by lot are numbered as they come."""
        if isinstance(message, tuple):
            return tuple(map(self._plain, message))
        if not isinstance(message, Message):
            return message
        values = {}
        for field, value in message.ListFields():
            if field.name in _VARYING:
                continue
            if field.name in ("prefix_id", "request_id"):
                values[field.name] = self._names.setdefault(value, f"name {len(self._names)}")
            elif field.message_type is None:
                values[field.name] = list(value) if field.is_repeated else value
            elif field.is_repeated:
                values[field.name] = [self._plain(part) for part in value]
            else:
                values[field.name] = self._plain(value)
        return values


async def _told(script: Sequence[Step]) -> list[Any]:
    """What the watched tenant is told by a new worker with far more room than all of it needs."""
    model = ScriptedModel([50, 51, 52], vocabulary_size=260, eos_token_id=2, context_length=2200)
    async with served_to_named(loaded(model), kv_blocks=4096) as worker, AsyncExitStack() as stack:
        stage = Stage(worker, stack)
        await stage.play(script)
        await worker.worker.engine_loop.call(lambda engine: engine.check())
        return stage.told


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scripts)
def test_what_a_tenant_is_told_does_not_depend_on_what_another_does_in_private(script: list[Step]) -> None:
    """Also with equal prompts, salts and request ids, and while the other's requests run."""
    without_other = [step for step in script if step.who != "other"]
    assert asyncio.run(_told(script)) == asyncio.run(_told(without_other))
