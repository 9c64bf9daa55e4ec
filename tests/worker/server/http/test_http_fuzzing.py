"""Bodies that nobody thought of: never a 500, always an answer as the description of the API has it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from support.http_worker import http_served
from support.tiny_loaded_model import EOS_ID, loaded

from prefixcache_worker.model.scripted_model import ScriptedModel

GENERATION_PATHS = ("/v1/chat/completions", "/v1/completions")
PATHS = (*GENERATION_PATHS, "/v1/models", "/v1/models/{model_id}", "/healthz", "/readyz")
FUZZING = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
]


async def against_a_worker(attack: Callable[[str], None]) -> None:
    """Run `attack` with the door's URL in a thread; the worker must have lost nothing by it."""
    model = ScriptedModel([7] * 4, vocabulary_size=260, eos_token_id=EOS_ID, context_length=512)
    async with http_served(loaded(model)) as worker:
        await asyncio.to_thread(attack, f"http://{worker.address}")
        stats = await worker.stats_without_clients()
        assert (stats.requests.failed, stats.blocks.live) == (0, 0)
        await worker.worker.engine_loop.call(lambda engine: engine.cache.check())
        assert (await worker.chat()).status_code == 200


@pytest.mark.parametrize("path", PATHS)
async def test_the_door_is_as_it_describes_itself(path: str):
    def attack(url: str) -> None:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        method = "POST" if path in GENERATION_PATHS else "GET"
        operation = schema[path][method]

        @settings(FUZZING, max_examples=100 if path in GENERATION_PATHS else 10)
        @given(case=operation.as_strategy())
        def run(case: schemathesis.Case) -> None:
            case.validate_response(case.call(), checks=CHECKS)

        run()

    await against_a_worker(attack)


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/completions", {"prompt": "f"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "f"}]}),
    ],
)
async def test_a_stream_to_its_end_is_as_described(path: str, prompt: dict[str, Any]):
    def attack(url: str) -> None:
        operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[path]["POST"]
        body = {"model": "tiny", "stream": True, "max_tokens": 4, **prompt}
        case = operation.Case(body=body, media_type="application/json")
        response = case.call()
        assert response.text.endswith("data: [DONE]\n\n")
        case.validate_response(response)

    await against_a_worker(attack)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
FIELDS = (
    *("n", "stop", "max_tokens", "min_tokens", "stop_token_ids", "temperature", "top_p", "top_k", "seed"),
    *("logit_bias", "logprobs", "top_logprobs", "stream", "stream_options", "echo", "priority", "user"),
    *("tools", "tool_choice", "parallel_tool_calls", "response_format", "public_messages", "cache_salt"),
)
TURNS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]) | st.text()},
        optional={
            "content": st.text() | JSON,
            "name": st.text() | JSON,
            "tool_call_id": st.text(),
            "tool_calls": st.lists(
                st.fixed_dictionaries(
                    {
                        "id": st.text(),
                        "type": st.just("function"),
                        "function": st.fixed_dictionaries(
                            {"name": st.text(), "arguments": st.text() | JSON.map(json.dumps)}
                        ),
                    }
                ),
                max_size=2,
            ),
        },
    ),
    max_size=3,
)
BODIES = st.builds(
    lambda fields, turns, prompt: {"model": "tiny", "messages": turns, "prompt": prompt} | fields,
    st.dictionaries(st.sampled_from(FIELDS), JSON | st.booleans() | st.integers(0, 9), max_size=4),
    TURNS,
    st.text() | st.lists(st.integers(0, 300)) | st.lists(st.text()) | JSON,
)


@pytest.mark.parametrize("path", GENERATION_PATHS)
async def test_hostile_bodies_are_answered_or_refused(path: str):
    def attack(url: str) -> None:
        with httpx.Client(base_url=url, timeout=30) as client:

            @settings(FUZZING, max_examples=300)
            @given(body=BODIES)
            def send(body: dict[str, Any]) -> None:
                body.pop("prompt" if "chat" in path else "messages", None)
                answered(client.post(path, content=json.dumps(body), headers=AS_JSON))

            @settings(FUZZING, max_examples=100)
            @given(content=st.binary(max_size=200))
            def send_bytes(content: bytes) -> None:
                answered(client.post(path, content=content, headers=AS_JSON))

            send()
            send_bytes()

    await against_a_worker(attack)


AS_JSON = {"content-type": "application/json"}


def answered(response: httpx.Response) -> None:
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert response.json()["error"].keys() == {"message", "type", "param", "code"}
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n")
    else:
        assert response.json()["usage"]["total_tokens"] > 0
