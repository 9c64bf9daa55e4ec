"""Any server that speaks OpenAI's HTTP as a target: our HTTP door, vLLM, SGLang, llama.cpp and others."""

from __future__ import annotations

import json
import time
from typing import Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from prefixcache_client.cache_answers import Stats
from prefixcache_client.errors import PrefixCacheClientError, UnavailableError
from prefixcache_client.load.openai_url import checked_url
from prefixcache_client.load.sse_answer import SseAnswer
from prefixcache_client.load.target import Answered, Refused
from prefixcache_client.load.tenant_keys import TenantKeys
from prefixcache_client.messages import Prompt, is_token_ids
from prefixcache_client.tls import Tls

_BAD_REQUEST = (400, 422)
_TEXT_HINT = "; a server that takes no token ids needs --prompt-form text or messages"
_READ_BUFFER_BYTES = 1024 * 1024
"""Half of the longest event that can be read."""


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
            raise PrefixCacheClientError(
                f"{self._url} has no model {self._model!r}: it has {', '.join(names)}"
            )
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
        return description | {name: value for name, value in limits.items() if isinstance(value, int)}

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
                        return await _read_answer(response, prompt)
                    message = (await response.text(errors="replace"))[:2000]
                    refused = {name for name in taken if name in message}
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
                text = await response.text(errors="replace")
        except TimeoutError:
            raise UnavailableError(f"{self._url} did not answer before the deadline") from None
        except (aiohttp.ClientError, OSError):
            raise UnavailableError(f"no server answers at {self._url}") from None
        if response.status in (401, 403):
            raise PrefixCacheClientError(f"{self._url} wants a key: {_error_message(text)}")
        try:
            models = json.loads(text)["data"]
            if response.status == 200 and models and all(isinstance(model["id"], str) for model in models):
                return list(models)
        except (ValueError, TypeError, KeyError):
            pass  # what it is not is said below
        raise PrefixCacheClientError(
            f"{self._url}: what answers there is no OpenAI-compatible server: /v1/models lists no models"
        )


async def _read_answer(response: aiohttp.ClientResponse, prompt: Prompt) -> Answered:
    answer = SseAnswer()
    try:
        async for line in response.content:
            if line.startswith(b"data:"):
                answer.push(line[5:].strip(), time.perf_counter())
    except (ValueError, HttpProcessingError):  # which of them, depends on aiohttp's version
        raise Refused("BAD_ANSWER", f"an event is longer than {2 * _READ_BUFFER_BYTES:,} bytes") from None
    return answer.finish(prompt)


def _error_message(text: str) -> str:
    """What is said in OpenAI's error object, or whatever there is."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        return text.strip() or "without a word"
