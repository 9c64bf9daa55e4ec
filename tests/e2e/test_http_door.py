"""The real process with the default model, called as agents' frameworks call it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai

DEADLINE_SECONDS = 120.0
"""Loading the model on a slow, busy machine takes a few seconds; nothing here takes this long."""
SYSTEM = "You are a helpful assistant of a travel agency. Answer in one word. " * 8


@asynccontextmanager
async def served(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A worker process and the URL of its door; it is gone afterwards whatever happens."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "prefixcache_worker", "--address", "127.0.0.1:0", "--http-address",
        "127.0.0.1:0", "--kv-blocks", "128", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert process.stdout is not None
            lines = [(await process.stdout.readline()).decode() for _ in range(3)]
            assert lines[1].startswith("OpenAI-compatible HTTP on http://127.0.0.1:")
            assert lines[2].startswith("listening on 127.0.0.1:")
            yield process, lines[1].split()[-1]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def turns(question: str) -> Any:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


async def test_a_real_model_answers_from_the_cache_and_drains():
    """A stream that runs when SIGTERM comes is finished, and the process exits with 0."""
    async with served() as (process, url):
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            model = (await client.models.list()).data[0].id
            answers = [
                await client.chat.completions.create(
                    model=model, messages=turns(question), temperature=0, max_tokens=8
                )
                for question in ("What is the capital of France?", "What is the capital of Italy?")
            ]
            stream = await client.chat.completions.create(
                model=model, messages=turns("Tell me of Paris."), max_tokens=16, stream=True
            )
            chunks = [await anext(stream)]
            process.send_signal(signal.SIGTERM)
            chunks += [chunk async for chunk in stream]
        _, errors = await process.communicate()
    assert "Paris" in (answers[0].choices[0].message.content or "")
    assert "Rome" in (answers[1].choices[0].message.content or "")
    usages = [answer.usage for answer in answers]
    assert [usage.prompt_tokens_details.cached_tokens > 100 for usage in usages] == [False, True]
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert process.returncode == 0, errors.decode()


async def test_a_busy_port_is_said_at_once():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        address = f"127.0.0.1:{busy.getsockname()[1]}"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "prefixcache_worker", "--address", "127.0.0.1:0", "--http-address", address,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, errors = await process.communicate()
    assert (process.returncode, output) == (1, b"")
    assert f"prefixcache serve: --http-address: cannot listen on {address}" in errors.decode()
