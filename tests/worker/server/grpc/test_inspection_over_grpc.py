"""Explain, DumpTree, WatchEvents and Reset over real gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from grpc_status import rpc_status
from support.named_callers import ADMIN, as_caller, served_to_named
from support.served_worker import ServedWorker, greedy_request, served
from support.tiny_loaded_model import loaded
from support.token_streams import stream

from prefixcache import MissCause
from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_worker.model.scripted_model import ScriptedModel
from prefixcache_worker.server.access.caller import Role
from prefixcache_worker.server.grpc import tree_answer

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
    monkeypatch.setattr("prefixcache_worker.server.grpc.cache_servicer.MAX_TREE_NODES", 3)
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
