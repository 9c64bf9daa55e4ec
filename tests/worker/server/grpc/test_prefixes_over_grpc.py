"""Prefixes that are kept, over gRPC: made, used, found by content, listed, changed, and gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from support.served_worker import DEADLINE_SECONDS, GatedModel, ServedWorker, greedy_request, served
from support.tiny_loaded_model import BOS_ID, EOS_ID, TURN_ID, byte_tokenizer, loaded
from support.tiny_model import tiny_decoder

from prefixcache import unpack_tokens
from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_worker.errors import ConfigError

TOKENS = list(range(10, 10 + 40))  # two whole blocks, and half of one
POLICY = "You are a support agent. Tickets can be refunded within a day."


@pytest.fixture
async def worker() -> AsyncIterator[ServedWorker]:
    async with served(loaded(tiny_decoder(vocabulary_size=300), add_bos=True)) as serving:
        yield serving


async def call(worker: ServedWorker, message: Any, tenant: str = "acme", **options: Any) -> Any:
    """The answer of the CacheService method that takes such a message."""
    method = getattr(worker.cache, type(message).__name__.removesuffix("Request"))
    return await method(
        message, metadata=[("x-tenant-id", tenant)], **{"timeout": DEADLINE_SECONDS, **options}
    )


async def refused(worker: ServedWorker, message: Any, tenant: str = "acme") -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(worker, message, tenant)
    return caught.value


async def create(
    worker: ServedWorker, token_ids: list[int] = TOKENS, *, tenant: str = "acme", **fields: Any
) -> cache_pb2.CreatePrefixResponse:
    response = await call(worker, of_tokens(token_ids, **fields), tenant)
    assert isinstance(response, cache_pb2.CreatePrefixResponse)
    return response


async def get(worker: ServedWorker, prefix_id: str, tenant: str = "acme") -> cache_pb2.Prefix:
    response = await call(worker, cache_pb2.GetPrefixRequest(prefix_id=prefix_id), tenant)
    assert isinstance(response, cache_pb2.GetPrefixResponse)
    return response.prefix


def of_tokens(token_ids: list[int] = TOKENS, **fields: Any) -> cache_pb2.CreatePrefixRequest:
    return cache_pb2.CreatePrefixRequest(token_ids=inference_pb2.TokenIds(ids=token_ids), **fields)


def of_text(text: str, prefix_id: str, **fields: Any) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        text=text,
        prefix_id=prefix_id,
        sampling=inference_pb2.SamplingParams(temperature=0),
        stop_conditions=inference_pb2.StopConditions(max_tokens=4, ignore_eos=True),
        **fields,
    )


def chat(*turns: tuple[str, str]) -> inference_pb2.ChatMessages:
    messages = [inference_pb2.ChatMessage(role=role, content=content) for role, content in turns]
    return inference_pb2.ChatMessages(messages=messages)


def detail(error: grpc.aio.AioRpcError, kind: Any) -> Any:
    status = rpc_status.from_call(error)
    found = kind()
    return found if any(packed.Unpack(found) for packed in status.details) else None


async def test_a_prefix_is_computed_once_and_then_renewed(worker: ServedWorker) -> None:
    first = await create(worker, label="policy", ttl_seconds=60)
    again = await create(worker, label="other", ttl_seconds=5)

    prefix, usage = first.prefix, first.usage
    assert (prefix.tenant, prefix.label, prefix.public) == ("acme", "policy", False)
    assert (prefix.num_tokens, prefix.num_kept_tokens, prefix.num_blocks) == (40, 32, 2)
    assert prefix.ttl_seconds == 60
    assert 0 < prefix.seconds_left <= 60
    assert (usage.prompt_tokens, usage.cached_tokens, usage.computed_tokens) == (40, 0, 40)
    assert (usage.completion_tokens, usage.written_tokens) == (0, 40)
    assert usage.block_seconds > 0
    assert not again.HasField("usage")
    assert (again.prefix.prefix_id, again.prefix.label) == (prefix.prefix_id, "policy")
    assert again.prefix.ttl_seconds == 60


async def test_a_prompt_goes_on_behind_a_prefix_as_if_it_were_whole(worker: ServedWorker) -> None:
    prefix = (await create(worker)).prefix
    whole = await worker.answer(greedy_request([*TOKENS, 7, 8, 9], 5), tenant="other")
    behind = await worker.answer(greedy_request([7, 8, 9], 5, prefix_id=prefix.prefix_id), tenant="acme")

    assert behind.token_ids == whole.token_ids
    usage = behind.completion.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.computed_tokens) == (43, 40, 3)
    assert (await get(worker, prefix.prefix_id)).num_uses == 1


async def test_the_prefix_alone_can_be_answered(worker: ServedWorker) -> None:
    prefix = (await create(worker)).prefix
    whole = await worker.answer(greedy_request(TOKENS, 5), tenant="other")
    behind = await worker.answer(greedy_request([], 5, prefix_id=prefix.prefix_id), tenant="acme")
    assert behind.token_ids == whole.token_ids
    assert behind.completion.usage.prompt_tokens == 40


async def test_text_behind_a_prefix_gets_no_beginning_of_its_own(worker: ServedWorker) -> None:
    prefix = (await call(worker, cache_pb2.CreatePrefixRequest(text=POLICY))).prefix
    assert prefix.num_tokens == 1 + len(POLICY)
    tokenizer = byte_tokenizer()
    rest = tokenizer.encode(" Q: why?", add_special=False)
    whole = [BOS_ID, *tokenizer.encode(POLICY, add_special=False), *rest]

    behind = await worker.answer(of_text(" Q: why?", prefix.prefix_id), tenant="acme")
    assert behind.completion.usage.prompt_tokens == len(whole)
    assert behind.token_ids == (await worker.answer(greedy_request(whole, 4), tenant="other")).token_ids


async def test_a_prefix_that_is_not_cached_any_more_is_simply_computed(worker: ServedWorker) -> None:
    prefix = (await create(worker)).prefix
    request = greedy_request(
        [7], 3, prefix_id=prefix.prefix_id, cache=inference_pb2.CacheOptions(mode="MODE_OFF")
    )
    answer = await worker.answer(request, tenant="acme")
    assert answer.completion.usage.computed_tokens == 41
    assert answer.token_ids == (await worker.answer(greedy_request([*TOKENS, 7], 3), tenant="b")).token_ids


async def test_whole_chats_find_the_system_prefix_by_content_and_refresh_it(worker: ServedWorker) -> None:
    """What an agent framework does: it keeps the system message and sends each conversation whole."""
    system = ("system", POLICY)
    prefix = (await call(worker, cache_pb2.CreatePrefixRequest(chat=chat(system), ttl_seconds=1000))).prefix
    turns = [system]
    for number in range(3):
        turns.append(("user", f"question {number}"))
        request = greedy_request([], 4)
        request.ClearField("token_ids")
        request.chat.CopyFrom(chat(*turns))
        answer = await worker.answer(request, tenant="acme")
        assert answer.completion.usage.cached_tokens >= prefix.num_tokens
        turns.append(("assistant", answer.text))
        assert (await get(worker, prefix.prefix_id)).num_uses == number + 1
    assert (await get(worker, prefix.prefix_id)).seconds_left > 990


async def test_a_chat_prefix_opens_no_answer_and_text_can_open_one(worker: ServedWorker) -> None:
    prefix = (await call(worker, cache_pb2.CreatePrefixRequest(chat=chat(("system", POLICY))))).prefix
    tokenizer = byte_tokenizer()
    rendered = [TURN_ID, *tokenizer.encode(f"system\n{POLICY}", add_special=False), EOS_ID]
    order = await worker.worker.engine_loop.call(
        lambda engine: engine.prefixes.start_with(prefix.prefix_id, tenant="acme")
    )
    assert unpack_tokens(order.tokens) == rendered

    rest = "<|turn|>user\nhi</s><|turn|>assistant\n"
    behind = await worker.answer(of_text(rest, prefix.prefix_id), tenant="acme")
    request = greedy_request([], 4)
    request.ClearField("token_ids")
    request.chat.CopyFrom(chat(("system", POLICY), ("user", "hi")))
    assert behind.token_ids == (await worker.answer(request, tenant="other")).token_ids


async def test_the_salt_is_the_prefix_s_own(worker: ServedWorker) -> None:
    prefix = (await create(worker, salt="s")).prefix
    unsalted = await worker.answer(greedy_request([*TOKENS, 7], 2), tenant="acme")
    assert unsalted.completion.usage.cached_tokens == 0
    behind = await worker.answer(greedy_request([7], 2, prefix_id=prefix.prefix_id), tenant="acme")
    assert behind.completion.usage.cached_tokens == 40


async def test_a_public_prefix_is_used_by_all_and_told_of_to_those_who_name_it(worker: ServedWorker) -> None:
    prefix = (await create(worker, public=True)).prefix
    answer = await worker.answer(greedy_request([7], 2, prefix_id=prefix.prefix_id), tenant="other")
    assert answer.completion.usage.cached_tokens >= 32
    assert (await get(worker, prefix.prefix_id, "other")).tenant == "acme"
    listed = await call(worker, cache_pb2.ListPrefixesRequest(), "other")
    assert list(listed.prefixes) == []


async def test_what_others_keep_cannot_be_found(worker: ServedWorker) -> None:
    prefix = (await create(worker)).prefix
    request = greedy_request([7], 2, prefix_id=prefix.prefix_id)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.answer(request, tenant="other")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    await call(worker, cache_pb2.DeletePrefixRequest(prefix_id=prefix.prefix_id))
    with pytest.raises(grpc.aio.AioRpcError) as own:
        await worker.answer(request, tenant="acme")
    assert (own.value.code(), own.value.details()) == (caught.value.code(), caught.value.details())
    assert (await worker.stats()).blocks.live == 0


async def test_pages_lead_through_all_prefixes_in_order(worker: ServedWorker) -> None:
    made = [(await create(worker, [n, *TOKENS])).prefix.prefix_id for n in range(60, 67)]
    found, token = [], ""
    while True:
        page = await call(worker, cache_pb2.ListPrefixesRequest(page_size=3, page_token=token))
        found += [prefix.prefix_id for prefix in page.prefixes]
        assert len(page.prefixes) <= 3
        if not (token := page.next_page_token):
            break
    assert found == made


async def test_an_update_changes_what_is_given(worker: ServedWorker) -> None:
    prefix = (await create(worker, ttl_seconds=60, label="x")).prefix
    longer = (
        await call(worker, cache_pb2.UpdatePrefixRequest(prefix_id=prefix.prefix_id, ttl_seconds=600))
    ).prefix
    assert (longer.ttl_seconds, longer.label) == (600, "x")
    assert longer.seconds_left > 60
    named = (await call(worker, cache_pb2.UpdatePrefixRequest(prefix_id=prefix.prefix_id, label=""))).prefix
    assert (named.ttl_seconds, named.label) == (600, "")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (cache_pb2.CreatePrefixRequest(), "prompt"),
        (of_tokens(TOKENS[:15]), "token_ids"),
        (of_tokens([300] * 20), "token_ids.ids[0]"),
        (of_tokens([5] * 5000), "token_ids"),
        (of_tokens(ttl_seconds=-1), "ttl_seconds"),
        (of_tokens(ttl_seconds=float("nan")), "ttl_seconds"),
        (of_tokens(ttl_seconds=float("inf")), "ttl_seconds"),
        (of_tokens(ttl_seconds=86401), "ttl_seconds"),
        (of_tokens(ttl_seconds=0), "ttl_seconds"),
        (of_tokens(label="x" * 257), "label"),
        (of_tokens(public=True, salt="s"), "salt"),
        (of_tokens(salt="s" * 70000), "salt"),
        (cache_pb2.GetPrefixRequest(), "prefix_id"),
        (cache_pb2.GetPrefixRequest(prefix_id="x" * 65), "prefix_id"),
        (cache_pb2.DeletePrefixRequest(), "prefix_id"),
        (cache_pb2.UpdatePrefixRequest(prefix_id="x", ttl_seconds=-1), "ttl_seconds"),
        (cache_pb2.UpdatePrefixRequest(prefix_id="x", label="x" * 257), "label"),
        (cache_pb2.ListPrefixesRequest(page_size=0), "page_size"),
        (cache_pb2.ListPrefixesRequest(page_size=1001), "page_size"),
        (cache_pb2.ListPrefixesRequest(page_token="-1"), "page_token"),
        (cache_pb2.ListPrefixesRequest(page_token="9" * 30), "page_token"),
        (cache_pb2.ListPrefixesRequest(page_token="٣"), "page_token"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
async def test_every_field_has_its_bounds(worker: ServedWorker, message: Any, field: str) -> None:
    error = await refused(worker, message)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    (violation,) = detail(error, error_details_pb2.BadRequest).field_violations
    assert violation.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"chat": chat(("user", "hi"))}, "chat"),
        ({"cache": inference_pb2.CacheOptions(salt="other")}, "cache.salt"),
        ({"cache": inference_pb2.CacheOptions(public_tokens=1)}, "cache.public_tokens"),
        ({"token_ids": inference_pb2.TokenIds(ids=[1] * 4080)}, "token_ids"),
        ({"prefix_id": "x" * 65}, "prefix_id"),
        ({"cache": inference_pb2.CacheOptions(priority=101)}, "cache.priority"),
        ({"cache": inference_pb2.CacheOptions(priority_seconds=0)}, "cache.priority_seconds"),
        (
            {"cache": inference_pb2.CacheOptions(priority_seconds=float("nan"))},
            "cache.priority_seconds",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_go_behind_a_prefix_is_named(
    worker: ServedWorker, changes: dict[str, Any], field: str
) -> None:
    prefix = (await create(worker, salt="s")).prefix
    request = of_text("hi", prefix.prefix_id)
    request.MergeFrom(inference_pb2.GenerateRequest(**changes))
    error = (
        await worker.refusal(request) if "prefix_id" in changes else await _refused_as_acme(worker, request)
    )
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    (violation,) = detail(error, error_details_pb2.BadRequest).field_violations
    assert violation.field == field


async def _refused_as_acme(
    worker: ServedWorker, request: inference_pb2.GenerateRequest
) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.answer(request, tenant="acme")
    return caught.value


async def test_a_budget_that_is_spent_is_a_quota_failure() -> None:
    async with served(
        loaded(tiny_decoder(vocabulary_size=300)), kv_blocks=16, kv_headroom=0, max_pinned_share=0.25
    ) as worker:
        await create(worker, [1] * 48, tenant="other")
        error = await refused(worker, of_tokens())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        (violation,) = detail(error, error_details_pb2.QuotaFailure).violations
        assert violation.description == error.details()
        assert "the prefix has 2 blocks" in error.details()
        assert (await worker.stats()).tokens.prompt == 48  # nothing was computed in vain


async def test_for_ever_where_the_worker_allows_it() -> None:
    async with served(
        loaded(tiny_decoder(vocabulary_size=300)), prefix_ttl=0.0, max_prefix_ttl=0.0
    ) as worker:
        usual = (await create(worker)).prefix
        told = (await create(worker, [9] * 16, ttl_seconds=0)).prefix
        assert [(prefix.ttl_seconds, prefix.seconds_left) for prefix in (usual, told)] == [(0, 0)] * 2


async def test_the_usual_time_is_within_the_most() -> None:
    with pytest.raises(ConfigError, match=r"--prefix-ttl: 3600 is more than --max-prefix-ttl, which is 60"):
        async with served(loaded(tiny_decoder(vocabulary_size=300)), max_prefix_ttl=60.0):
            pass


@pytest.mark.parametrize("scheme", ["paged", "contiguous"])
async def test_a_scheme_that_shares_nothing_keeps_no_prefixes(scheme: str) -> None:
    async with served(loaded(tiny_decoder(vocabulary_size=300)), scheme=scheme, context_length=128) as worker:
        for message in (
            of_tokens(),
            cache_pb2.GetPrefixRequest(prefix_id="x"),
            cache_pb2.ListPrefixesRequest(),
            cache_pb2.UpdatePrefixRequest(prefix_id="x"),
            cache_pb2.DeletePrefixRequest(prefix_id="x"),
        ):
            error = await refused(worker, message)
            assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "--scheme shared" in error.details()
        assert (await worker.refusal(of_text("hi", "x"))).code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_client_that_goes_away_cancels_the_computation() -> None:
    model = GatedModel(tiny_decoder(vocabulary_size=300))
    async with served(loaded(model), max_batch_tokens=16) as worker:
        making = asyncio.ensure_future(call(worker, of_tokens()))
        await model.begin(1)
        making.cancel()
        await worker.clients_gone()
        model.allow(10)
        stats = await worker.stats_when(lambda stats: stats.requests.cancelled == 1)
        assert stats.blocks.live == 0
        assert list((await call(worker, cache_pb2.ListPrefixesRequest())).prefixes) == []


async def test_a_deadline_ends_the_computation() -> None:
    model = GatedModel(tiny_decoder(vocabulary_size=300))
    async with served(loaded(model), max_batch_tokens=16) as worker:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(worker, of_tokens(), timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        model.allow(10)
        stats = await worker.stats_when(lambda stats: stats.requests.cancelled == 1)
        assert stats.blocks.live == 0


async def test_usage_tells_a_tenant_its_own_and_an_admin_all(worker: ServedWorker) -> None:
    await create(worker)
    answer = await worker.answer(greedy_request([*TOKENS, 7], 5), tenant="acme")
    await worker.answer(greedy_request([1, 2, 3], 2), tenant="other")

    (own,) = (await call(worker, cache_pb2.GetUsageRequest())).tenants
    usage = answer.completion.usage
    assert (own.tenant, own.finished_requests, own.unfinished_requests, own.live_requests) == (
        "acme",
        2,
        0,
        0,
    )
    assert (own.prompt_tokens, own.cached_tokens, own.computed_tokens) == (81, 40, 41)
    assert own.completion_tokens == 5
    assert own.written_tokens == 40 + usage.written_tokens
    assert own.num_pinned_blocks == 2
    assert own.num_blocks == own.num_charged_blocks == 3
    assert not own.HasField("ceiling_blocks")
    (named,) = (await call(worker, cache_pb2.GetUsageRequest(tenant="other"))).tenants
    assert (named.tenant, named.prompt_tokens) == ("other", 3)
    everybody = (await call(worker, cache_pb2.GetUsageRequest(all_tenants=True))).tenants
    assert [tenant.tenant for tenant in everybody] == ["acme", "other"]
    assert sum(tenant.prompt_tokens for tenant in everybody) == (await worker.stats()).tokens.prompt
