"""Explain, DumpTree, WatchEvents and Reset over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import grpc
import pytest
from grpc_status import rpc_status
from support.named_callers import ADMIN, as_caller, served_to_named
from support.served_worker import ServedWorker, greedy_request, served
from support.tiny_loaded_model import loaded
from support.token_streams import stream

from prefixcache import BlockKey, EventGapError, EventIndex, MissCause
from prefixcache.events import BlocksRemoved, BlocksStored, CacheCleared, EventState
from prefixcache.token_chunks import pack_tokens
from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_worker.engine import event_feed
from prefixcache_worker.model.scripted_model import ScriptedModel
from prefixcache_worker.server import tree_answer
from prefixcache_worker.server.caller import Role

P, Q = [token % 200 + 10 for token in stream("a", 80)], [token % 200 + 10 for token in stream("b", 80)]
A, B = as_caller("a"), as_caller("b")
PUBLISHER = as_caller("p", Role.PUBLISHER)


def scripted() -> Any:
    return loaded(ScriptedModel([50, 51, 52, 53], vocabulary_size=260, eos_token_id=2, context_length=1024))


async def generate(
    worker: ServedWorker, prompt: Sequence[int], caller: dict[str, Any], **cache: Any
) -> inference_pb2.Usage:
    message = greedy_request(prompt, 1, cache=inference_pb2.CacheOptions(**cache))
    responses = [response async for response in worker.inference.Generate(message, **caller)]
    return responses[-1].completion.usage


async def explain(
    worker: ServedWorker, prompt: Sequence[int], caller: dict[str, Any], **cache: Any
) -> cache_pb2.ExplainResponse:
    message = cache_pb2.ExplainRequest(
        token_ids=inference_pb2.TokenIds(ids=prompt), cache=inference_pb2.CacheOptions(**cache)
    )
    return await worker.cache.Explain(message, **caller)


async def tree(
    worker: ServedWorker, caller: dict[str, Any], max_depth: int = 0
) -> cache_pb2.DumpTreeResponse:
    return await worker.cache.DumpTree(cache_pb2.DumpTreeRequest(max_depth=max_depth), **caller)


def details_of(error: grpc.aio.AioRpcError) -> tuple[grpc.StatusCode, str, list[str]]:
    status = rpc_status.from_call(error)
    assert status is not None
    return error.code(), status.message, [detail.TypeName() for detail in status.details]


async def test_an_admin_is_told_who_has_what_and_a_user_is_not() -> None:
    async with served_to_named(scripted()) as worker:
        await generate(worker, P, B)
        told_user = await explain(worker, P, A)
        told_admin = await explain(worker, P, as_caller("a", Role.ADMIN))
        never_seen = await explain(worker, Q, A)
    assert told_user.cause == never_seen.cause == cache_pb2.MISS_CAUSE_NEVER_SEEN
    assert not told_user.divergence.HasField("cached_token")
    assert told_user.held_by_tenant == ""
    assert told_user.summary == never_seen.summary
    assert told_user.num_cached_tokens == 0
    assert told_admin.cause == cache_pb2.MISS_CAUSE_OTHER_TENANT
    assert told_admin.held_by_tenant == "b"
    assert told_admin.summary == (
        "0 of 80 prompt tokens are cached: tenant 'b' has 64 for itself alone; "
        "let a publisher declare public what both send"
    )


async def test_explain_agrees_with_generate_and_shows_both_sides_of_the_divergence() -> None:
    async with served(scripted()) as worker:
        tokenizer = worker.worker.model.tokenizer
        text = "The quick brown fox jumps over the lazy dog. " * 2
        ids = tokenizer.encode(text + "And sleeps.", add_special=True)
        await generate(worker, ids, {})
        message = cache_pb2.ExplainRequest(text=text + "But runs.")
        told = await worker.cache.Explain(message)
        usage = await generate(worker, tokenizer.encode(text + "But runs.", add_special=True), {})
    assert told.num_cached_tokens == usage.cached_tokens == len(text)
    assert told.num_prompt_tokens == usage.prompt_tokens
    assert told.divergence.position == len(text)
    assert tokenizer.decode([told.divergence.prompt_token], skip_special_tokens=False) == "B"
    assert tokenizer.decode([told.divergence.cached_token], skip_special_tokens=False) == "A"
    assert told.divergence.prompt_preview == "e lazy dog. But runs."
    assert told.divergence.cached_preview.startswith("e lazy dog. An")


@pytest.mark.parametrize(
    ("first", "asked", "options", "cause", "words"),
    [
        (P, [*P, 9], {}, MissCause.NONE, "80 of 81 prompt tokens are cached: all but the last"),
        (
            P,
            Q,
            {},
            MissCause.NEVER_SEEN,
            "0 of 80 prompt tokens are cached: at token 0 it leaves every",
        ),
        (P[:40], P, {}, MissCause.NEVER_SEEN, "40 of 80 prompt tokens are cached: nothing that goes on so"),
        (P, P[:40] + Q[:40], {}, MissCause.NEVER_SEEN, "at token 40 it leaves every cached prompt"),
        (P, P, {"salt": "pepper"}, MissCause.OTHER_SCOPE, "the tenant has 64 under another salt"),
        (P, P, {"public_tokens": 80}, MissCause.OTHER_SCOPE, "as private what is declared public now"),
        (P, P[:40] + Q[:7], {}, MissCause.BELOW_BLOCK, "what follows token 40 is less than a block"),
    ],
)
async def test_each_cause_has_its_sentence(
    first: list[int], asked: list[int], options: dict[str, Any], cause: MissCause, words: str
) -> None:
    async with served_to_named(scripted()) as worker:
        await generate(worker, first, PUBLISHER)
        told = await explain(worker, asked, PUBLISHER, **options)
    assert cache_pb2.MissCause.Name(told.cause) == f"MISS_CAUSE_{cause.name}"
    assert words in told.summary


async def test_evicted_and_cache_off_have_their_sentences() -> None:
    async with served(scripted(), kv_blocks=8, kv_headroom=0.0) as worker:
        await generate(worker, P, {}, mode=inference_pb2.CacheOptions.MODE_OFF)
        told_off = await explain(worker, P, {})
        await generate(worker, P, {})
        await generate(worker, Q, {})
        told_evicted = await explain(worker, P, {})
    assert told_off.cause == cache_pb2.MISS_CAUSE_CACHE_OFF
    assert "by a request with the cache off" in told_off.summary
    assert told_evicted.cause == cache_pb2.MISS_CAUSE_EVICTED
    assert "was cached until its blocks were needed" in told_evicted.summary


async def test_explain_checks_what_generate_checks() -> None:
    async with served_to_named(scripted()) as worker:
        refusals = []
        for prompt, options in [
            ([], {}),
            ([300], {}),
            ([5] * 1024, {}),
            (P, {"public_tokens": 81}),
            (P, {"mode": 7}),
            (P, {"public_tokens": 16}),
        ]:
            with pytest.raises(grpc.aio.AioRpcError) as of_explain:
                await explain(worker, prompt, A, **options)
            with pytest.raises(grpc.aio.AioRpcError) as of_generate:
                await generate(worker, prompt, A, **options)
            refusals.append((of_explain.value.code(), of_generate.value.code()))
    invalid, denied = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED
    assert refusals == [(invalid, invalid)] * 5 + [(denied, denied)]


async def test_a_tenant_sees_the_tree_as_if_nobody_else_had_anything() -> None:
    async with served_to_named(scripted()) as worker:
        await generate(worker, P, PUBLISHER, public_tokens=80)
        await generate(worker, P[:48] + Q[:20], B)
        await generate(worker, Q, A)
        (public, own) = (await tree(worker, A)).nodes
        top = await tree(worker, ADMIN, max_depth=1)
        everything = await tree(worker, ADMIN)
        nothing_of_its_own = await tree(worker, as_caller("c"))
    assert (public.id, public.parent_id, public.public, public.tenant, public.num_tokens) == (
        1,
        0,
        True,
        "",
        80,
    )
    assert (own.id, own.parent_id, own.public, own.tenant, own.num_tokens) == (2, 0, False, "a", 80)
    assert "" not in (public.preview, own.preview)
    assert public.last_used == own.last_used == 0
    assert list(nothing_of_its_own.nodes) == [public]
    assert {node.tenant for node in everything.nodes} == {"", "b", "a"}
    assert [node.preview != "" for node in everything.nodes] == [node.public for node in everything.nodes]
    assert all(node.last_used > 0 for node in everything.nodes)
    assert len(top.nodes) < len(everything.nodes)


async def test_a_large_tree_is_cut_off_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefixcache_worker.server.cache_servicer.MAX_TREE_NODES", 3)
    async with served_to_named(scripted()) as worker:
        for first in range(5):
            await generate(worker, [first + 20] * 20, A)
        for caller in (A, ADMIN):
            answer = await tree(worker, caller)
            whole = 2 * 5  # a run and a tail for each prompt
            assert len(answer.nodes) == 3
            assert answer.num_left_out == whole - 3
    assert tree_answer.MAX_TREE_NODES * (4 * tree_answer.MAX_PREVIEW_LENGTH + 300) < 10 * 2**20


async def test_inspection_of_a_worker_that_shares_nothing_is_refused() -> None:
    async with served(scripted(), scheme="paged") as worker:
        assert await tree(worker, {}) == cache_pb2.DumpTreeResponse()
        for method, message in (
            (worker.cache.Explain, cache_pb2.ExplainRequest(token_ids=inference_pb2.TokenIds(ids=P))),
            (worker.cache.Reset, cache_pb2.ResetRequest()),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await method(message)
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await worker.cache.WatchEvents(cache_pb2.WatchEventsRequest()).read()
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_reset_forgets_all_and_disturbs_nobody() -> None:
    async with served_to_named(scripted()) as worker:
        first = await generate(worker, P, A)
        assert (await generate(worker, P, A)).cached_tokens == 79
        call = worker.inference.Generate(greedy_request(Q, 300), **A)
        num_tokens = len((await call.read()).delta.token_ids)
        await worker.cache.Reset(cache_pb2.ResetRequest(), **ADMIN)
        assert not (await tree(worker, ADMIN)).nodes
        assert (await generate(worker, P, A)).cached_tokens == first.cached_tokens == 0
        while (response := await call.read()) is not grpc.aio.EOF:
            num_tokens += len(response.delta.token_ids)
        assert num_tokens == 300
        assert response is grpc.aio.EOF
        await worker.worker.engine_loop.call(lambda engine: engine.check())


# Events


class Watcher:
    """An index that is kept from the stream alone."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._state: list[BlocksStored] | None = []
        self.index = EventIndex()

    @classmethod
    def at(cls, call: Any, index: EventIndex) -> Watcher:
        watcher = cls(call)
        watcher._state, watcher.index = None, index
        return watcher

    async def read(self) -> None:
        """Take one message."""
        message = await self._call.read()
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


@pytest.fixture
async def small() -> AsyncIterator[ServedWorker]:
    """A worker whose pool holds three prompts or so, so that blocks are evicted."""
    async with served_to_named(scripted(), kv_blocks=16, kv_headroom=0.0) as worker:
        yield worker


async def test_watchers_from_any_starting_point_end_up_with_the_caches_own_keys(small: ServedWorker) -> None:
    """Under eviction and reset, from an empty cache, from its middle, and resumed."""
    watchers = []
    for turn in range(24):
        if turn % 5 == 0:
            watchers.append(Watcher(small.cache.WatchEvents(cache_pb2.WatchEventsRequest(), **ADMIN)))
            await watchers[-1].follow(0)
        if turn == 13:
            await small.cache.Reset(cache_pb2.ResetRequest(), **ADMIN)
        prompt = (P if turn % 2 else Q)[: 20 + turn] + [turn + 10] * 17
        await generate(small, prompt, (A, B)[turn % 2])
        if turn == 16:  # it goes away, and comes back where it was
            _, number = await position(small)
            await watchers[0].follow(number)
            watchers[0]._call.cancel()
        if turn == 20:
            number = watchers[0].index.next_sequence_number
            message = cache_pb2.WatchEventsRequest(from_sequence_number=number)
            watchers[0] = Watcher.at(small.cache.WatchEvents(message, **ADMIN), watchers[0].index)
    keys, number = await position(small)
    assert keys
    for watcher in watchers:
        await watcher.follow(number)
        assert dict(watcher.index.parent_of) == keys
        watcher.index.check()


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
            code, sentence, _ = details_of(refused.value)
            assert code is grpc.StatusCode.OUT_OF_RANGE
            assert f"event {wanted} comes next" in sentence


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
