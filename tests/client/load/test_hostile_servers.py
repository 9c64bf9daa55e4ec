"""Servers that answer with nonsense, lies or without end cost a load their own requests and nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.raw_openai import STREAM, Answer, chunk, event, raw_openai, text_event, whole

from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.load.openai_target import OpenAITarget
from prefixcache_client.load.target import Answered, Refused, shown

DONE = event(b"[DONE]")
NEST = b"[" * 100_000
USAGE = b'{"choices": [], "usage": {"prompt_tokens": %s, "completion_tokens": 1}}'


@asynccontextmanager
async def target(url: str) -> AsyncIterator[OpenAITarget]:
    made = OpenAITarget(url, model="raw", deadline=60)
    try:
        yield made
    finally:
        await made.close()


async def send(answer: bytes | Answer) -> Answered:
    async with raw_openai(answer) as url, target(url) as made:
        return await made.send((5, 6), max_tokens=3, tenant=None, public_tokens=0, public_messages=0)


def stream(*events: bytes) -> bytes:
    return STREAM + b"".join(events) + b"0\r\n\r\n"


def usage(prompt_tokens: bytes) -> bytes:
    return stream(text_event("a"), event(USAGE % prompt_tokens), DONE)


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (whole(b"boom", status=500, content_type="text/plain; charset=hex"), "500", "boom"),
        (whole(NEST, status=500), "500", r"^\[+…$"),
        (stream(event(NEST)), "BAD_ANSWER", "an event of the answer is no chunk"),
        (usage(b"-5"), "BAD_ANSWER", "prompt_tokens is -5"),
        (usage(b"9" * 400), "BAD_ANSWER", "prompt_tokens is 9999"),
        (usage(b"true"), "BAD_ANSWER", "prompt_tokens is True"),
        (usage(b"NaN"), "BAD_ANSWER", "prompt_tokens is nan"),
        (
            usage(b'4, "prompt_tokens_details": {"cached_tokens": 5}'),
            "BAD_ANSWER",
            "5 of 4 prompt tokens are cached",
        ),
        (
            stream(event(rb'{"error": {"code": "a\ud800\u001b[2J", "message": "b\n\u202ec"}}')),
            "a\ufffd\ufffd[2J",
            "^b \ufffdc$",
        ),
    ],
)
async def test_nonsense_is_refused_in_words_that_can_be_shown(answer: bytes, code: str, message: str) -> None:
    with pytest.raises(Refused, match=message) as refused:
        await send(answer)
    assert refused.value.code == code


async def test_an_answer_without_end_is_broken_off() -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM)
        while True:
            writer.write(text_event("x" * 100_000))
            await writer.drain()

    with pytest.raises(Refused, match="the answer to 3 tokens asked for does not end") as refused:
        await send(endless)
    assert refused.value.code == "BAD_ANSWER"


async def test_a_refusal_without_end_is_not_read_to_its_end() -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM.replace(b"200 OK", b"503 Busy"))
        while True:
            writer.write(chunk(b"x" * 10_000))
            await writer.drain()

    with pytest.raises(Refused) as refused:
        await send(endless)
    assert refused.value.code == "503"
    assert len(str(refused.value)) == 500


async def test_an_answer_is_complete_with_its_last_event_though_the_stream_goes_on() -> None:
    async def lingers(writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + text_event("a") + DONE)
        while True:
            writer.write(chunk(b": still here\n\n"))
            await writer.drain()

    assert (await send(lingers)).text == "a"


@pytest.mark.parametrize(
    "models", [NEST, rb'{"data": [{"id": "m\ud800"}]}', rb'{"data": [{"id": "\u001b[m"}]}']
)
async def test_a_list_of_models_that_cannot_be_read_or_named(models: bytes) -> None:
    async with raw_openai(b"", models=models) as url, target(url) as made:
        with pytest.raises(PrefixCacheClientError, match="/v1/models lists no models"):
            await made.describe()


@pytest.mark.parametrize("length", [b"-5", b"true", b"9" * 400, b"1.5"])
async def test_a_context_that_cannot_be_is_not_believed(length: bytes) -> None:
    models = b'{"data": [{"id": "raw", "max_model_len": %s}]}' % length
    async with raw_openai(b"", models=models) as url, target(url) as made:
        assert "context_length" not in await made.describe()


def test_what_is_shown_is_one_line_and_no_longer_than_asked_for() -> None:
    assert shown("  a\r\n b\tc ", 20) == "a b c"
    assert shown("x" * 50, 20) == "x" * 19 + "…"
    assert shown("é \x00\x9b\ud800\u202e", 20) == "é \ufffd\ufffd\ufffd\ufffd"
