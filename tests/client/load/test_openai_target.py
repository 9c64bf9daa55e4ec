"""OpenAI-compatible servers as targets: ours, and others' ways."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.http_worker import HttpWorker, http_served
from support.stub_http import stub_http
from support.tiny_loaded_model import EOS_ID, loaded

from prefixcache_client.errors import PrefixCacheClientError, UnavailableError
from prefixcache_client.load.arrivals import ConstantRate
from prefixcache_client.load.openai_target import OpenAITarget
from prefixcache_client.load.openai_url import checked_url
from prefixcache_client.load.runner import Runner
from prefixcache_client.load.target import Answered, Refused
from prefixcache_client.load.tenant_keys import TenantKeys
from prefixcache_client.load.workloads import Chat
from prefixcache_client.load.workloads.amount import Amount
from prefixcache_client.messages import Prompt
from prefixcache_worker.model.scripted_model import ScriptedModel

HELLO = {"role": "user", "content": "hello"}


def text_chunk(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text}]}


def usage_chunk(**usage: Any) -> dict[str, Any]:
    return {"choices": [], "usage": usage}


ANSWER = (
    text_chunk("a"),
    text_chunk(""),
    text_chunk("bc"),
    usage_chunk(prompt_tokens=7, completion_tokens=3),
)


@asynccontextmanager
async def target(url: str, **options: Any) -> AsyncIterator[OpenAITarget]:
    made = OpenAITarget(url, **options)
    try:
        yield made
    finally:
        await made.close()


async def send(made: OpenAITarget, prompt: Prompt = (5, 6), **options: Any) -> Answered:
    settings = {"max_tokens": 3, "tenant": None, "public_tokens": 0, "public_messages": 0} | options
    return await made.send(prompt, **settings)


@pytest.fixture
async def worker() -> AsyncIterator[HttpWorker]:
    script = [4 + i % 256 for i in range(1000)]
    model = ScriptedModel(script, vocabulary_size=1000, eos_token_id=EOS_ID, context_length=512)
    async with http_served(loaded(model)) as made:
        yield made


async def test_our_own_door_describes_itself_and_answers_ids_texts_and_chats(worker: HttpWorker) -> None:
    async with target(worker.base_url) as made:
        assert await made.describe() == {
            "kind": "openai",
            "address": f"http://{worker.address}",
            "model": "tiny",
            "context_length": 512,
        }
        prompt = [50 + i for i in range(40)]
        cold = await send(made, prompt, max_tokens=5)
        again = await send(made, prompt, max_tokens=5)
        text = await send(made, "hello", max_tokens=2)
        chat = await send(made, [HELLO], max_tokens=2, public_messages=1)
        assert await made.stats() is None

    assert (cold.prompt_tokens, cold.cached_tokens, cold.output_tokens) == (40, 0, 5)
    assert (again.cached_tokens, again.text) == (39, cold.text)
    assert cold.first_token is not None
    assert cold.token_ids == ()
    assert text.prompt_tokens == 5
    assert chat.prompt_tokens > len("hello")
    assert chat.output_tokens == text.output_tokens == 2


async def test_a_conversation_of_messages_goes_through_our_door(worker: HttpWorker) -> None:
    workload = Chat(
        conversations=3,
        turns=Amount.fixed(2),
        system_tokens=8,
        user_tokens=Amount.fixed(4),
        output_tokens=Amount.fixed(3),
        prompt_form="messages",
    )
    async with target(worker.base_url) as made:
        measurement = await Runner(workload, made, ConstantRate(rate=1000)).run()

    assert [result.error for result in measurement.results] == [None] * 6
    assert [result.output_tokens for result in measurement.results] == [3] * 6
    first = {result.session: result for result in measurement.results if result.turn == 0}
    for result in measurement.results:
        if result.turn == 1:
            before = first[result.session]
            assert result.prompt_tokens > before.prompt_tokens + before.output_tokens
            assert result.cached_tokens is not None
            assert result.cached_tokens >= before.prompt_tokens


async def test_fields_that_a_server_does_not_know_are_left_out_from_then_on() -> None:
    unknown = ("ignore_eos", "stream_options")
    async with (
        stub_http(unknown_fields=unknown, events=(*ANSWER, "[DONE]")) as stub,
        target(stub.url) as made,
    ):
        for _ in range(2):
            assert (await send(made)).text == "abc"

    fields = [{name for name in (*unknown, "public_messages") if name in body} for body in stub.bodies]
    assert fields == [set(unknown), {"stream_options"}, set(), set()]


async def test_the_body_asks_for_a_greedy_stream_with_usage() -> None:
    async with stub_http(events=(*ANSWER, "[DONE]")) as stub, target(stub.url, model="stub") as made:
        await send(made, (5, 6), max_tokens=9)
        await send(made, [HELLO], public_messages=1)

    ids, chat = stub.bodies
    assert ids == {
        "model": "stub",
        "prompt": [5, 6],
        "max_tokens": 9,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    assert (chat["messages"], chat["public_messages"]) == ([HELLO], 1)
    assert stub.paths == ["/v1/completions", "/v1/chat/completions"]


async def test_what_a_server_does_not_tell_is_not_made_up() -> None:
    """Without details nothing is known of the cache; without usage messages are counted for tokens."""
    async with stub_http(events=(*ANSWER, "[DONE]")) as stub, target(stub.url) as made:
        told = await send(made)
        stub.events = (text_chunk("a"), text_chunk("b"), "[DONE]")
        untold = await send(made, (5, 6, 7))
        stub.events = (text_chunk("a"), usage_chunk(prompt_tokens=None, prompt_tokens_details=5), "[DONE]")
        odd = await send(made, "text")

    assert (told.prompt_tokens, told.cached_tokens, told.output_tokens) == (7, None, 3)
    assert (untold.prompt_tokens, untold.cached_tokens, untold.output_tokens) == (3, None, 2)
    assert len(untold.token_gaps) == 1
    assert (odd.prompt_tokens, odd.cached_tokens, odd.output_tokens) == (None, None, 1)


async def test_cached_tokens_and_thoughts_are_read_where_they_are() -> None:
    """A model that thinks has its first token with its first thought."""
    events = (
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]},
        {"choices": [{"index": 0, "delta": {"content": "yes"}}]},
        usage_chunk(prompt_tokens=9, completion_tokens=2, prompt_tokens_details={"cached_tokens": 8}),
        "[DONE]",
    )
    async with stub_http(events=events) as stub, target(stub.url) as made:
        answer = await send(made, [HELLO])

    assert (answer.text, answer.cached_tokens, answer.output_tokens) == ("yes", 8, 2)
    assert len(answer.token_gaps) == 1


@pytest.mark.parametrize(
    ("settings", "code", "message"),
    [
        ({"status": 429}, "429", "come again"),
        ({"status": 500}, "500", "come again"),
        ({"events": ANSWER}, "CONNECTION", "the answer ended before it was complete"),
        ({"events": ({"choices": [5]},)}, "BAD_ANSWER", "is no chunk"),
        ({"events": ("x" * 3_000_000,)}, "BAD_ANSWER", "an event is longer than 2,097,152 bytes"),
        ({"events": ("nonsense",)}, "BAD_ANSWER", "an event of the answer is no chunk: b'nonsense'"),
        ({"events": ({"error": {"code": 503, "message": "overloaded"}},)}, "503", "overloaded"),
    ],
)
async def test_a_refusal_has_its_code_and_its_reason(settings: Any, code: str, message: str) -> None:
    async with stub_http(**settings) as stub, target(stub.url, model="stub") as made:
        with pytest.raises(Refused, match=message) as refused:
            await send(made)
    assert refused.value.code == code


async def test_who_refuses_token_ids_is_asked_for_text_instead() -> None:
    hint = "come again; a server that takes no token ids needs --prompt-form text or messages"
    async with stub_http(status=400) as stub, target(stub.url, model="stub") as made:
        with pytest.raises(Refused) as of_ids:
            await send(made, (5, 6))
        with pytest.raises(Refused) as of_text:
            await send(made, "text")
    assert (str(of_ids.value), str(of_text.value)) == (hint, "come again")


async def test_a_server_that_has_gone_refuses_with_connection() -> None:
    async with stub_http() as stub, target(stub.url) as made:
        await made.describe()
    async with target(stub.url, model="stub") as made:
        with pytest.raises(Refused, match=stub.url) as refused:
            await send(made)
    assert refused.value.code == "CONNECTION"


async def test_tenants_show_their_own_keys_or_their_names() -> None:
    keys = TenantKeys(api_key="shared", by_tenant={"shop": "of-the-shop"})
    async with stub_http(events=(*ANSWER, "[DONE]")) as stub, target(stub.url, keys=keys) as made:
        for tenant in ("shop", "bank", None):
            await send(made, tenant=tenant)

    shown = [(headers.get("authorization"), headers.get("x-tenant-id")) for headers in stub.headers]
    assert shown == [("Bearer of-the-shop", None), ("Bearer shared", "bank"), ("Bearer shared", None)]


async def test_llama_cpp_tells_its_limits_in_meta() -> None:
    models = {"data": [{"id": "a"}, {"id": "b", "meta": {"n_vocab": 49152, "n_ctx_train": 8192}}]}
    async with stub_http(models=models) as stub, target(stub.url, model="b") as made:
        description = await made.describe()

    assert (description["context_length"], description["vocabulary_size"]) == (8192, 49152)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"models": "<html>hello</html>"}, "no OpenAI-compatible server: /v1/models lists no models"),
        ({"models": {"data": []}}, "/v1/models lists no models"),
        ({"models": {"data": [{"name": "x"}]}}, "/v1/models lists no models"),
        ({"models": []}, "/v1/models lists no models"),
        ({"models": {"error": {"message": "no key"}}, "status": 401}, "wants a key: no key"),
    ],
)
async def test_a_server_of_another_kind_is_named(settings: Any, message: str) -> None:
    async with stub_http(**settings) as stub, target(stub.url) as made:
        with pytest.raises(PrefixCacheClientError, match=message):
            await made.describe()


async def test_a_model_that_is_not_there_is_named_with_those_that_are() -> None:
    async with stub_http() as stub, target(stub.url, model="other") as made:
        with pytest.raises(PrefixCacheClientError, match="has no model 'other': it has stub"):
            await made.describe()


async def test_nobody_listens() -> None:
    async with target("http://127.0.0.1:1") as made:
        with pytest.raises(UnavailableError, match=r"no server answers at http://127\.0\.0\.1:1"):
            await made.describe()


def test_urls() -> None:
    assert checked_url("http://host:80/v1/") == "http://host:80"
    assert checked_url("https://[::1]:8000") == "https://[::1]:8000"
    for url in (
        "ftp://h",
        "http://",
        "http://h:0",
        "http://h:x",
        "http://h/v2",
        "http://h?q=1",
        "http://u@h",
    ):
        with pytest.raises(ValueError, match="must be http://HOST:PORT"):
            checked_url(url)
