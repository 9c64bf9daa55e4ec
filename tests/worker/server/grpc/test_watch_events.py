"""WatchEvents over real gRPC: the state, what follows, gaps and ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.named_callers import ADMIN, as_caller, served_to_named
from support.served_worker import ServedWorker, greedy_request
from support.tiny_loaded_model import loaded
from support.token_streams import stream

from prefixcache import BlockKey, EventGapError, EventIndex, pack_tokens
from prefixcache.events import BlocksRemoved, BlocksStored, CacheCleared, EventState
from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_worker.engine import event_feed
from prefixcache_worker.model.scripted_model import ScriptedModel
from prefixcache_worker.server.access.caller import Role

P, Q = [token % 200 + 10 for token in stream("a", 80)], [token % 200 + 10 for token in stream("b", 80)]
A = as_caller("a")
PUBLISHER = as_caller("p", Role.PUBLISHER)


def scripted() -> Any:
    return loaded(ScriptedModel([50, 51, 52, 53], vocabulary_size=260, eos_token_id=2, context_length=1024))


async def generate(worker: ServedWorker, prompt: Sequence[int], caller: dict[str, Any], **cache: Any) -> None:
    message = greedy_request(prompt, 1, cache=inference_pb2.CacheOptions(**cache))
    async for _ in worker.inference.Generate(message, **caller):
        pass


class Watcher:
    """An index that is kept from the stream alone."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self._state: list[BlocksStored] | None = []
        self.index = EventIndex()

    async def read(self) -> None:
        """Take one message."""
        message = await self.call.read()
        assert message is not grpc.aio.EOF
        kind = message.WhichOneof("event")
        if kind == "state_complete":
            assert self._state is not None
            self.index = EventIndex.from_state(EventState(self._state, message.sequence_number + 1))
            self._state = None
        elif self._state is not None:
            self._state.append(event_of(message))
        else:
            self.index.apply(event_of(message))

    async def follow(self, next_sequence_number: int) -> None:
        """Read until this is the next number."""
        async with asyncio.timeout(30):
            while self._state is not None or self.index.next_sequence_number < next_sequence_number:
                await self.read()


def event_of(message: cache_pb2.WatchEventsResponse) -> Any:
    number = message.sequence_number
    match message.WhichOneof("event"):
        case "stored":
            stored = message.stored
            return BlocksStored(
                number,
                BlockKey(stored.parent_key),
                tuple(map(BlockKey, stored.block_keys)),
                pack_tokens(list(stored.token_ids)),
                stored.public,
            )
        case "removed":
            return BlocksRemoved(
                number, tuple(map(BlockKey, message.removed.block_keys)), message.removed.cause
            )
        case "cleared":
            return CacheCleared(number)
    raise AssertionError(message)


async def position(worker: ServedWorker) -> tuple[dict[BlockKey, BlockKey], int]:
    """The keys in the cache, and the number of the event that comes next."""
    return await worker.worker.engine_loop.call(
        lambda engine: (engine.cache.block_keys(), engine.cache.event_state().next_sequence_number)
    )


class Act(NamedTuple):
    """Something that happens to the worker, or to the watcher of that number."""

    kind: str
    number: int


acts = st.builds(
    Act,
    st.sampled_from(["generate"] * 6 + ["publish", "reset", "watch", "leave", "come back"]),
    st.integers(0, 5),
)


async def _play(script: list[Act]) -> None:
    """A pool of three prompts or so, so that blocks are evicted."""
    async with served_to_named(scripted(), kv_blocks=16, kv_headroom=0.0) as worker:

        def watch(**fields: int) -> Any:
            return worker.cache.WatchEvents(cache_pb2.WatchEventsRequest(**fields), **ADMIN)

        watchers = [Watcher(watch())]
        for kind, number in script:
            watcher = watchers[number % len(watchers)]
            match kind:
                case "generate" | "publish":
                    prompt = P[: 16 + 8 * number] + [number + 10] * 17
                    public = {"public_tokens": len(prompt)} if kind == "publish" else {}
                    await generate(worker, prompt, PUBLISHER if public else A, **public)
                case "reset":
                    await worker.cache.Reset(cache_pb2.ResetRequest(), **ADMIN)
                case "watch":
                    watchers.append(Watcher(watch()))
                case "leave":  # in the middle of what it has been told, as long as that is not the state
                    await watcher.follow(0)
                    watcher.call.cancel()
                case "come back" if watcher.call.done():
                    watcher.call = watch(from_sequence_number=watcher.index.next_sequence_number)
        keys, number = await position(worker)
        for watcher in watchers:
            if watcher.call.done():
                watcher.call = watch(from_sequence_number=watcher.index.next_sequence_number)
            await watcher.follow(number)
            assert dict(watcher.index.parent_of) == keys
            watcher.index.check()
            watcher.call.cancel()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(acts, min_size=6, max_size=30))
def test_whoever_follows_the_stream_has_the_caches_own_keys_in_the_end(script: list[Act]) -> None:
    """Under eviction and reset, from whatever moment on, and resumed wherever the watcher had been."""
    asyncio.run(_play(script))


@pytest.fixture
async def small() -> AsyncIterator[ServedWorker]:
    """A worker whose pool holds three prompts or so, so that blocks are evicted."""
    async with served_to_named(scripted(), kv_blocks=16, kv_headroom=0.0) as worker:
        yield worker


async def test_the_state_comes_first_and_bears_the_last_number_before_it(small: ServedWorker) -> None:
    await generate(small, P, PUBLISHER, public_tokens=48)
    call = small.cache.WatchEvents(cache_pb2.WatchEventsRequest(), **ADMIN)
    messages = [await call.read() for _ in range(3)]
    await generate(small, Q, A)
    messages.append(await call.read())
    kinds = [message.WhichOneof("event") for message in messages]
    numbers = [message.sequence_number for message in messages]
    assert kinds == ["stored", "stored", "state_complete", "stored"]
    assert [message.stored.public for message in messages] == [True, False, False, False]
    assert list(messages[0].stored.token_ids) == P[:48]
    assert numbers == [numbers[0], numbers[0], numbers[0], numbers[0] + 1]


async def test_a_number_that_the_log_does_not_have_is_out_of_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_feed, "LOG_BLOCKS", 8)
    async with served_to_named(scripted()) as worker:
        _, first = await position(worker)
        for token in range(20, 30):
            await generate(worker, [token] * 20, A)
        _, number = await position(worker)
        for wanted in (0, 1, first, number + 1, 2**64 - 1):
            message = cache_pb2.WatchEventsRequest(from_sequence_number=wanted)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await worker.cache.WatchEvents(message, **ADMIN).read()
            assert refused.value.code() is grpc.StatusCode.OUT_OF_RANGE
            assert f"event {wanted} comes next" in (refused.value.details() or "")


async def test_a_watcher_that_falls_behind_the_log_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes nothing while the log moves on: nothing is kept for it."""
    monkeypatch.setattr(event_feed, "LOG_BLOCKS", 8)
    async with served_to_named(scripted()) as worker:
        feed = worker.worker.event_feed
        assert feed is not None
        async with aclosing(feed.watch(None)) as events:
            assert isinstance(await anext(events), event_feed.StateComplete)
            await generate(worker, [20] * 32, A)
            assert isinstance(await anext(events), BlocksStored)
            for token in range(21, 30):
                await generate(worker, [token] * 32, A)
            with pytest.raises(EventGapError):
                await anext(events)
        assert feed._num_watchers == 0


async def test_watchers_end_when_the_worker_stops() -> None:
    async with served_to_named(scripted()) as worker:
        call = worker.cache.WatchEvents(cache_pb2.WatchEventsRequest(), **ADMIN)
        await call.read()
        await worker.service.stop(drain_seconds=0)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call.read()
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "is shutting down" in (ended.value.details() or "")


async def test_a_watcher_that_goes_away_leaves_nothing_behind(small: ServedWorker) -> None:
    feed = small.worker.event_feed
    assert feed is not None
    call = small.cache.WatchEvents(cache_pb2.WatchEventsRequest(), **ADMIN)
    await call.read()
    assert feed._num_watchers == 1
    call.cancel()
    async with asyncio.timeout(30):
        while feed._num_watchers:
            await small.health()
    await generate(small, P, A)
    assert not feed._is_noted
