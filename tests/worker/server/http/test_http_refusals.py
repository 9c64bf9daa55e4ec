"""What the door refuses, and in which words."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest
from pydantic import ValidationError
from support.http_worker import HttpWorker, http_served, refusal
from support.served_worker import DEADLINE_SECONDS, GatedModel
from support.tiny_loaded_model import EOS_ID, loaded

from prefixcache import NotPublisherError, OutOfBlocksError
from prefixcache_worker.errors import InvalidRequestError, UnauthenticatedError
from prefixcache_worker.model.scripted_model import ScriptedModel
from prefixcache_worker.server.access.access import Metadata
from prefixcache_worker.server.access.caller import Caller, Role
from prefixcache_worker.server.http import errors
from prefixcache_worker.server.http.bodies import ChatBody, CompletionBody
from prefixcache_worker.server.http.exchange import MAX_BODY_BYTES
from prefixcache_worker.server.status import STATUS_BY_ERROR, status_from_error


def scripted(num_tokens: int = 4) -> ScriptedModel:
    return ScriptedModel([7] * num_tokens, vocabulary_size=260, eos_token_id=EOS_ID)


def turn(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"} | fields]}


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[1]"}}
FUNCTION = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({"messages": []}, "messages", "has 0 messages"),
        ({"messages": None}, "messages", "input should be a valid list"),
        ({"model": 5}, "model", "input should be a valid string"),
        ({"frobnicate": None}, "frobnicate", "is not a field that this server knows"),
        (turn(role="robot"), "messages[0].role", "'user'"),
        (turn(content=[{"type": "image_url"}]), "messages[0].content", "is in none of the forms"),
        (turn(extra=1), "messages[0].extra", "is not a field that this server knows"),
        (turn(tool_calls=[CALL]), "messages[0].tool_calls", "only an assistant calls tools"),
        (turn(tool_call_id="c"), "messages[0].tool_call_id", "only a tool's turn"),
        (
            turn(role="assistant", tool_calls=[CALL]),
            "messages[0].tool_calls[0].function.arguments",
            "is not a JSON object",
        ),
        (turn(content="x" * 5000), "messages", "has 50.. tokens; the context of 4096"),
        ({"temperature": -1}, "temperature", "-1 is not in 0 to 100"),
        ({"temperature": "1"}, "temperature", "input should be a valid number"),
        ({"temperature": 1e300}, "temperature", "inf is not in 0 to 100"),
        ({"top_p": 0}, "top_p", r"0 is not in \(0, 1\]"),
        ({"n": 0}, "n", "0 is not in 1 to 64"),
        ({"n": True}, "n", "input should be a valid integer"),
        ({"n": -1}, "n", "greater than or equal to 0"),
        ({"seed": 2**64}, "seed", "less than 1844"),
        ({"max_tokens": 0}, "max_tokens", "0 is not at least 1"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "0 is not at least 1"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_completion_tokens", "is the same as max_tokens"),
        ({"max_tokens": 2**32}, "max_tokens", "less than 4294967296"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "5 is more than max_tokens"),
        ({"stop": ["a", ""]}, "stop[1]", "has 0 characters"),
        ({"stop": "x" * 1025}, "stop[0]", "has 1025 characters"),
        ({"stop_token_ids": [260]}, "stop_token_ids[0]", "260 is not a token id"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "'a' is not a token id"),
        ({"logit_bias": {"260": 1}}, "logit_bias[260]", "260 is not a token id"),
        ({"logit_bias": {"5": 101}}, "logit_bias[5]", "101 is not in -100 to 100"),
        ({"presence_penalty": 2.5}, "presence_penalty", "2.5 is not in -2 to 2"),
        ({"top_k": -2}, "top_k", "-2 is below -1"),
        ({"priority": 101}, "priority", "101 is not in -100 to 100"),
        ({"top_logprobs": 1}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "21 is not in 0 to 20"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"cache_salt": "x" * 65537}, "cache_salt", "has 65537 bytes"),
        ({"public_messages": 2}, "public_messages", "2 of 1 messages cannot be public"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "is missing"),
        ({"tools": [FUNCTION] * 2}, "tools[1].function.name", "'f' is there twice"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"response_format": {"type": "xml"}}, "response_format", "'xml'"),
    ],
)
async def test_a_field_that_is_wrong_is_named_as_the_body_names_it(
    fields: dict[str, Any], param: str, sentence: str
):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]} | fields
    async with http_served(loaded(scripted())) as worker:
        error = refusal(await worker.client.post("/v1/chat/completions", json=body), 400)
    assert (error["type"], error["param"], error["code"]) == (
        "invalid_request_error", param, "invalid_request"
    )  # fmt: skip
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(error["message"])


@pytest.mark.parametrize(
    ("prompt", "fields", "param", "sentence"),
    [
        ("", {}, "prompt", "has no tokens"),
        ([], {}, "prompt", "is an empty list"),
        ([[]], {}, "prompt[0]", "has no tokens"),
        (["a", ""], {}, "prompt[1]", "has no tokens"),
        ([[5], [5, 260]], {}, "prompt[1][1]", "260 is not a token id"),
        ([5, 260], {}, "prompt[1]", "260 is not a token id"),
        ([5, "a"], {}, "prompt", "is in none of the forms"),
        ([-1], {}, "prompt", "is in none of the forms"),
        (None, {}, "prompt", "is in none of the forms"),
        ("x", {"logprobs": 21}, "logprobs", "21 is not in 0 to 20"),
        ("x", {"echo": True, "logprobs": 21}, "logprobs", "21 is not in 0 to 20"),
        ("x", {"max_tokens": 0}, "max_tokens", "0 is not at least 1"),
        ("x", {"suffix": "y"}, "suffix", "is not a field that this server knows"),
        ("x", {"best_of": 2}, "best_of", "is not a field that this server knows"),
    ],
)
async def test_a_prompt_that_is_wrong_is_named_by_its_place(
    prompt: Any, fields: dict[str, Any], param: str, sentence: str
):
    async with http_served(loaded(scripted())) as worker:
        error = refusal(await worker.complete(prompt, **fields), 400)
    assert error["param"] == param
    assert sentence in error["message"]


async def test_calls_that_are_no_requests_are_refused():
    async with http_served(loaded(scripted())) as worker:
        post = worker.client.post
        path = "/v1/chat/completions"
        as_json = {"content-type": "application/json; charset=utf-8"}
        for content in (b"", b"{", b"[]", b'{"a": NaN}', b'{"a": "\xff"}', b'{"model": 1, "model": 1}'):
            error = refusal(await post(path, content=content, headers=as_json), 400)
            assert error["param"] == "body"
        error = refusal(await post(path, content=b"{}"), 415)
        assert error["code"] == "unsupported_media_type"
        error = refusal(await post(path, content=b" " * (MAX_BODY_BYTES + 1), headers=as_json), 413)
        assert error["code"] == "body_too_large"
        error = refusal(await worker.chat(model="gpt-4"), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "'tiny'" in error["message"]
        assert refusal(await worker.client.get("/v1/models/x/y"), 404)["code"] == "model_not_found"
        assert refusal(await worker.client.get("/v1/nothing"), 404)["code"] == "not_found"
        response = await worker.client.get(path)
        assert refusal(response, 405)["code"] == "method_not_allowed"
        assert response.headers["allow"] == "POST"
        assert (await worker.chat()).status_code == 200


async def test_a_full_worker_says_when_to_come_again():
    model = GatedModel(scripted())
    async with http_served(loaded(model), max_running=1, max_waiting=1) as worker:
        taken = [asyncio.ensure_future(worker.chat()) for _ in range(2)]
        await model.begin(1)
        while len(worker.worker.engine_loop._streams) < 2:
            await worker.client.get("/healthz")
        # Three prompts are three requests: none of them is left behind.
        for response in (await worker.chat(), await worker.complete(["a", "b", "c"])):
            error = refusal(response, 429)
            assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
            assert response.headers["retry-after"] == "1"
        model.allow(1000)
        assert [(await answer).status_code for answer in taken] == [200, 200]
        assert (await worker.stats_without_clients()).blocks.live == 0


async def test_a_request_id_goes_in_and_comes_back():
    model = GatedModel(scripted())
    async with http_served(loaded(model)) as worker:
        headers = {"x-request-id": "order 7"}
        body = {"model": "tiny", "prompt": "x"}
        running = asyncio.ensure_future(worker.client.post("/v1/completions", json=body, headers=headers))
        await model.begin(1)
        response = await worker.client.post("/v1/completions", json=body, headers=headers)
        error = refusal(response, 409)
        assert (error["type"], error["code"]) == ("conflict_error", "duplicate_request")
        assert response.headers["x-request-id"] == "order 7"
        model.allow(1000)
        response = await running
        assert response.headers["x-request-id"] == "order 7"
        assert response.json()["id"] == "cmpl-order 7"
        made_up = [(await worker.complete("x")).headers["x-request-id"] for _ in range(2)]
        assert len({*made_up, ""}) == 3
        for bad in (b"x" * 257, b"caf\xe9"):
            response = await worker.client.get("/v1/models", headers={"x-request-id": bad})
            assert refusal(response, 400)["param"] == "x-request-id"


class OneKey:
    """Knows one credential."""

    def caller(self, metadata: Metadata) -> Caller:
        if ("authorization", "Bearer right") not in metadata:
            raise UnauthenticatedError("the key is unknown")
        return Caller(tenant="shop", role=Role.USER)


async def test_every_call_of_the_api_needs_a_credential_and_probes_do_not():
    async with http_served(loaded(scripted()), access=OneKey()) as worker:
        calls = [
            ("GET", "/v1/models", None),
            ("GET", "/v1/models/tiny", None),
            ("POST", "/v1/completions", {"model": "tiny", "prompt": "x"}),
            ("POST", "/v1/chat/completions", {"model": "tiny", **turn()}),
        ]
        for method, path, body in calls:
            response = await worker.client.request(method, path, json=body)
            error = refusal(response, 401)
            assert (error["type"], error["code"]) == ("authentication_error", "unauthenticated")
            assert response.headers["www-authenticate"] == "Bearer"
            headers = {"Authorization": "Bearer right"}
            assert (await worker.client.request(method, path, json=body, headers=headers)).is_success
        for path in ("/healthz", "/readyz"):
            assert (await worker.client.get(path)).is_success
        # A user's prompt cannot be public.
        body = {"model": "tiny", "public_messages": 1, **turn(content="x" * 40)}
        response = await worker.client.post("/v1/chat/completions", json=body, headers=headers)
        assert refusal(response, 403)["type"] == "permission_error"


def test_every_error_of_the_worker_has_a_status_in_http():
    for kind in STATUS_BY_ERROR:
        row = STATUS_BY_ERROR[kind]
        assert row.code in errors.HTTP_BY_CODE, kind
    assert status_from_error(ValueError("secret")).code == grpc.StatusCode.INTERNAL.value[0]


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (InvalidRequestError("n", "is wrong"), 400, "invalid_request_error", "invalid_request"),
        (NotPublisherError("no"), 403, "permission_error", "not_publisher"),
        (OutOfBlocksError(num_needed=7, num_free=3, num_idle=0), 429, "rate_limit_error", "out_of_blocks"),
        (KeyError("secret"), 500, "server_error", "internal_error"),
    ],
)
def test_errors_in_openai_form(error: Exception, status: int, kind: str, code: str):
    response = errors.response_from_error(error)
    described = response.body.error
    assert (response.status, described.type, described.code) == (status, kind, code)
    assert "secret" not in json.dumps(response.body.model_dump())
    assert ("retry-after" in response.headers) == (status == 429)


async def test_the_worker_drains_with_its_door(caplog: pytest.LogCaptureFixture):
    """Not ready from the beginning; what runs may finish, what comes is refused; then the port is closed."""
    model = GatedModel(scripted())
    async with http_served(loaded(model)) as worker:
        assert (await worker.client.get("/readyz")).json() == {"status": "ready"}
        running = asyncio.ensure_future(worker.chat())
        await model.begin(1)
        stopping = asyncio.ensure_future(worker.service.stop(drain_seconds=60))
        await asyncio.sleep(0)
        response = await _not_ready(worker)
        assert refusal(response, 503)["code"] == "engine_stopped"
        assert refusal(await worker.chat(), 503)["type"] == "server_error"
        assert (await worker.client.get("/healthz")).json() == {"status": "alive"}
        model.allow(1000)
        assert (await running).json()["choices"][0]["finish_reason"] == "stop"
        await stopping
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*worker.address.split(":"))
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


async def _not_ready(worker: HttpWorker) -> Any:
    while (response := await worker.client.get("/readyz")).is_success:
        pass
    return response


async def test_a_body_with_two_lengths_is_refused_and_ends_the_connection():
    """A proxy that goes by the other length would take the rest for a request of somebody else."""
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    lengths = b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"
    async with http_served(loaded(scripted())) as worker:
        reader, writer = await asyncio.open_connection(*worker.address.split(":"))
        writer.write(head + lengths + b"0\r\n\r\nGET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(DEADLINE_SECONDS):
            received = await reader.read()
        writer.close()
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b'"ambiguous_length"' in received
    assert received.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("wrong", [1, "", [], {}, None, True])
def test_of_many_wrong_items_few_errors_are_made(wrong: Any):
    """What is said of one takes a kilobyte: the items of one body would take gigabytes."""
    many = [wrong] * 1000
    chat = {"model": "tiny", "stop": many, "stop_token_ids": many, "messages": many, "tools": many}
    turns = [{"role": "user", "content": many, "tool_calls": many}] * 1000
    for kind, body in (
        (ChatBody, chat),
        (ChatBody, {"model": "tiny", "messages": turns}),
        (CompletionBody, {"model": "tiny", "prompt": [many] * 1000, "n": "x"}),
    ):
        with pytest.raises(ValidationError) as caught:
            kind.model_validate(body)
        assert caught.value.error_count() < 20
