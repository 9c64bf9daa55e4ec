"""Any server that speaks OpenAI's HTTP as a target: our HTTP door, vLLM, SGLang, llama.cpp and others."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from prefixcache_client.cache_answers import Stats
from prefixcache_client.errors import PrefixCacheClientError, UnavailableError
from prefixcache_client.load.openai_url import checked_url
from prefixcache_client.load.sse_answer import SseAnswer
from prefixcache_client.load.target import Answered, Refused, shown
from prefixcache_client.load.tenant_keys import TenantKeys
from prefixcache_client.messages import Prompt, is_token_ids
from prefixcache_client.read_json import read_json
from prefixcache_client.tls import Tls

_BAD_REQUEST = (400, 422)
_TEXT_HINT = "; a server that takes no token ids needs --prompt-form text or messages"
_READ_BUFFER_BYTES = 1024 * 1024
"""Half of the longest event that can be read."""
_MOST_BYTES_PER_TOKEN = 16 * 1024
"""An answer that is longer than so much for each token asked for, and one event more, may have no end."""
_MOST_REFUSAL_BYTES = 64 * 1024
_MOST_LIST_BYTES = 16 * 1024 * 1024
"""Of the list of models."""
_END_SECONDS = 0.1
"""A server that does not end its answer so long after its last event loses the connection."""
_MOST_CONTEXT = 2**32 - 1
_MOST_NAMES_CHARS = 300


class OpenAITarget:
    """Token ids and text go to `/v1/completions`, messages to `/v1/chat/completions`, all as streams.

    Fields that not every server takes are left out from the moment on that this one refuses them by name:
    `ignore_eos`, without which answers may be shorter than asked for; `stream_options`, without which output
    tokens are counted as messages; and `public_messages`, which only ours has.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        keys: TenantKeys | None = None,
        tls: Tls | None = None,
        deadline: float | None = None,
    ) -> None:
        """`url` is http://HOST:PORT, with or without /v1. Without `model`, the first that the server names.

        Requires: a running event loop. A request without an answer after `deadline` seconds ends with
        DEADLINE_EXCEEDED. Raises ValueError for what is no such URL, and OSError when a file of `tls` cannot
        be read.
        """
        self._url = checked_url(url)
        self._model = model
        self._keys = keys or TenantKeys()
        self._refused_fields: set[str] = set()
        self._session = aiohttp.ClientSession(
            # No limit: what waits for a connection here would be sent late, unseen.
            connector=aiohttp.TCPConnector(limit=0, ssl=True if tls is None else tls.ssl_context()),
            timeout=aiohttp.ClientTimeout(total=deadline),
            read_bufsize=_READ_BUFFER_BYTES,
        )

    async def describe(self) -> dict[str, str | int | float]:
        models = await self._models()
        names = [str(model["id"]) for model in models]
        if self._model is None:
            self._model = names[0]
        elif self._model not in names:
            there = shown(", ".join(names), _MOST_NAMES_CHARS)
            raise PrefixCacheClientError(f"{self._url} has no model {self._model!r}: it has {there}")
        model = models[names.index(self._model)]
        description: dict[str, str | int | float] = {
            "kind": "openai",
            "address": self._url,
            "model": self._model,
        }
        # vLLM and ours tell the context length, llama.cpp both, OpenAI neither.
        meta = model["meta"] if isinstance(model.get("meta"), dict) else {}
        limits = {
            "context_length": model.get("max_model_len") or meta.get("n_ctx") or meta.get("n_ctx_train"),
            "vocabulary_size": meta.get("n_vocab"),
        }
        return description | {
            name: value for name, value in limits.items() if type(value) is int and 0 < value <= _MOST_CONTEXT
        }

    async def send(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        tenant: str | None,
        public_tokens: int,
        public_messages: int,
    ) -> Answered:
        is_chat = not isinstance(prompt, str) and len(prompt) > 0 and not is_token_ids(prompt)
        body = {
            "model": self._model,
            "messages" if is_chat else "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
        }
        optional: dict[str, Any] = {"ignore_eos": True, "stream_options": {"include_usage": True}}
        if is_chat and public_messages:
            optional["public_messages"] = public_messages
        path = "/v1/chat/completions" if is_chat else "/v1/completions"
        headers = dict(self._keys.metadata(tenant))
        try:
            while True:
                taken = {k: value for k, value in optional.items() if k not in self._refused_fields}
                async with self._session.post(
                    self._url + path, json=body | taken, headers=headers
                ) as response:
                    if response.status == 200:
                        return await _read_answer(response, prompt, max_tokens)
                    message = await _read_text(response, _MOST_REFUSAL_BYTES)
                    refused = {name for name in taken if name in message[:2000]}
                    if response.status not in _BAD_REQUEST or not refused:
                        hint = _TEXT_HINT if response.status in _BAD_REQUEST and is_token_ids(prompt) else ""
                        raise Refused(str(response.status), _error_message(message) + hint)
                    self._refused_fields |= refused
        except TimeoutError:
            raise Refused(
                "DEADLINE_EXCEEDED", f"{self._url}: the deadline passed before the answer was complete"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Refused("CONNECTION", f"{self._url}: {error or type(error).__name__}") from None

    async def stats(self) -> Stats | None:
        """None: OpenAI's HTTP has no such call."""
        return None

    async def close(self) -> None:
        await self._session.close()

    async def _models(self) -> list[dict[str, Any]]:
        """The models that the server lists, at least one."""
        try:
            async with self._session.get(
                f"{self._url}/v1/models", headers=dict(self._keys.metadata(None))
            ) as response:
                text = await _read_text(response, _MOST_LIST_BYTES)
        except TimeoutError:
            raise UnavailableError(f"{self._url} did not answer before the deadline") from None
        except (aiohttp.ClientError, OSError):
            raise UnavailableError(f"no server answers at {self._url}") from None
        if response.status in (401, 403):
            raise PrefixCacheClientError(f"{self._url} wants a key: {shown(_error_message(text), 500)}")
        try:
            models = [model for model in read_json(text)["data"] if _is_name(model["id"])]
            if response.status == 200 and models:
                return models
        except (ValueError, TypeError, KeyError):
            pass  # what it is not is said below
        raise PrefixCacheClientError(
            f"{self._url}: what answers there is no OpenAI-compatible server: /v1/models lists no models"
        )


async def _read_answer(response: aiohttp.ClientResponse, prompt: Prompt, max_tokens: int) -> Answered:
    answer = SseAnswer()
    num_bytes_left = 2 * _READ_BUFFER_BYTES + max_tokens * _MOST_BYTES_PER_TOKEN
    try:
        async for line in response.content:
            num_bytes_left -= len(line)
            if num_bytes_left < 0:
                raise Refused("BAD_ANSWER", f"the answer to {max_tokens:,} tokens asked for does not end")
            if line.startswith(b"data:"):
                answer.push(line[5:].strip(), time.perf_counter())
                if answer.is_done:
                    await _read_end(response)
                    break
    except (ValueError, HttpProcessingError):  # which of them, depends on aiohttp's version
        raise Refused("BAD_ANSWER", f"an event is longer than {2 * _READ_BUFFER_BYTES:,} bytes") from None
    return answer.finish(prompt)


async def _read_end(response: aiohttp.ClientResponse) -> None:
    """Wait for the end behind the last event, without which the connection cannot be used again."""
    with suppress(TimeoutError, aiohttp.ClientError):  # whatever is wrong there, the answer is complete
        async with asyncio.timeout(_END_SECONDS):
            async for _ in response.content.iter_any():
                pass


async def _read_text(response: aiohttp.ClientResponse, most_bytes: int) -> str:
    """The body, or its beginning; UTF-8, whatever the server calls it."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) >= most_bytes:
            break
    return body[:most_bytes].decode("utf-8", errors="replace")


def _is_name(value: object) -> bool:
    """Whether it can be a model's: text that can be sent, written to a file and shown."""
    return isinstance(value, str) and value.isprintable()


def _error_message(text: str) -> str:
    """What is said in OpenAI's error object, or whatever there is."""
    try:
        return str(read_json(text)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        return text.strip() or "without a word"
