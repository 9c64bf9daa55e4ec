"""The clients that people point at the door, unmodified; each sees on its second call what was cached.

The model is a script, so that what comes out is known; no client may reach for anything but loopback.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import agents
import openai
import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from support.http_worker import http_served
from support.tiny_loaded_model import EOS_ID, byte_tokenizer, loaded

from prefixcache_worker.model.loader import LoadedModel
from prefixcache_worker.model.scripted_model import ScriptedModel

SYSTEM = "You are the assistant of a shop that sells ropes. " * 4
QUESTION = {"role": "user", "content": "How long is it?"}
CONVERSATION: Any = [{"role": "system", "content": SYSTEM}, QUESTION]
ANSWER = '{"metres": 3}'
CALL = '<tool_call>\n{"name": "length_of", "arguments": {"rope": "blue"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"metres": {"type": "integer"}}, "required": ["metres"]}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "length_of",
        "parameters": {"type": "object", "properties": {"rope": {"type": "string"}}, "required": ["rope"]},
    },
}


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no client open a connection to anywhere else."""
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: Any) -> None:
        assert address[0] == "127.0.0.1", f"a client reaches for {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_here)


def says(text: str) -> LoadedModel:
    script = byte_tokenizer().encode(text, add_special=False)
    return loaded(ScriptedModel(script, vocabulary_size=260, eos_token_id=EOS_ID))


async def test_openai_whole_and_streamed():
    async with (
        http_served(says(ANSWER)) as worker,
        openai.AsyncOpenAI(base_url=worker.base_url, api_key="none") as client,
    ):
        assert [model.id async for model in client.models.list()] == ["tiny"]
        first, second = [
            await client.chat.completions.create(model="tiny", messages=CONVERSATION) for _ in range(2)
        ]
        stream = await client.chat.completions.create(
            model="tiny", messages=CONVERSATION, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = await client.completions.create(model="tiny", prompt=SYSTEM, max_tokens=3, logprobs=2)
    assert (first.choices[0].message.content, first.choices[0].finish_reason) == (ANSWER, "stop")
    assert _cached(first) == 0
    assert _cached(second) == second.usage.prompt_tokens - 1 > 200
    assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == ANSWER
    assert _cached(chunks[-1]) == second.usage.prompt_tokens - 1
    assert text.choices[0].text == ANSWER[:3]
    assert text.choices[0].logprobs.tokens == list(ANSWER[:3])


async def test_openai_without_asyncio():
    def ask(base_url: str) -> list[Any]:
        with openai.OpenAI(base_url=base_url, api_key="none") as client:
            answers = [client.chat.completions.create(model="tiny", messages=CONVERSATION) for _ in range(2)]
            with client.chat.completions.create(model="tiny", messages=CONVERSATION, stream=True) as stream:
                return [*answers, *stream]

    async with http_served(says(ANSWER)) as worker:
        _, second, *chunks = await asyncio.to_thread(ask, worker.base_url)
    assert second.choices[0].message.content == ANSWER
    assert _cached(second) == second.usage.prompt_tokens - 1
    assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == ANSWER


@pytest.mark.parametrize("is_stream", [False, True])
async def test_openai_tools(is_stream: bool):
    """The helper of the client puts a streamed call together again."""
    async with (
        http_served(says(CALL)) as worker,
        openai.AsyncOpenAI(base_url=worker.base_url, api_key="none") as client,
    ):
        if is_stream:
            async with client.chat.completions.stream(
                model="tiny", messages=CONVERSATION, tools=[TOOL]
            ) as stream:
                answer = await stream.get_final_completion()
        else:
            answer = await client.chat.completions.create(
                model="tiny", messages=CONVERSATION, tools=[TOOL], tool_choice="required"
            )
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content or None) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("length_of", '{"rope": "blue"}')


class Rope(BaseModel):
    metres: int


async def test_openai_json_schema():
    async with (
        http_served(says(ANSWER)) as worker,
        openai.AsyncOpenAI(base_url=worker.base_url, api_key="none") as client,
    ):
        answer = await client.chat.completions.parse(
            model="tiny", messages=CONVERSATION, response_format=Rope
        )
    assert answer.choices[0].message.parsed == Rope(metres=3)


async def test_openai_maps_errors_to_its_own():
    async with (
        http_served(says(ANSWER)) as worker,
        openai.AsyncOpenAI(base_url=worker.base_url, api_key="none") as client,
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="tiny", messages=CONVERSATION, temperature=101)
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="other", messages=CONVERSATION)
    assert (refused.value.param, refused.value.code) == ("temperature", "invalid_request")
    assert unknown.value.code == "model_not_found"


async def test_langchain():
    async with http_served(says(ANSWER)) as worker:
        chat = ChatOpenAI(base_url=worker.base_url, api_key=SecretStr("none"), model="tiny")
        turns = [SystemMessage(SYSTEM), HumanMessage("How long is it?")]
        first, second = [await chat.ainvoke(turns) for _ in range(2)]
        chunks = [chunk async for chunk in chat.astream(turns, stream_usage=True)]
    async with http_served(says(CALL)) as worker:
        chat = ChatOpenAI(base_url=worker.base_url, api_key=SecretStr("none"), model="tiny")
        called = await chat.bind_tools([TOOL]).ainvoke(turns)
    assert second.content == "".join(str(chunk.content) for chunk in chunks) == ANSWER
    assert first.usage_metadata["input_token_details"]["cache_read"] == 0
    for answer in (second, sum(chunks[1:], chunks[0])):
        usage = answer.usage_metadata
        assert usage["input_token_details"]["cache_read"] == usage["input_tokens"] - 1
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("length_of", {"rope": "blue"})


@pytest.fixture
def untraced() -> Iterator[None]:
    agents.set_tracing_disabled(True)
    yield
    agents.set_tracing_disabled(False)


@pytest.mark.usefixtures("untraced")
async def test_openai_agents():
    ropes: list[str] = []

    @agents.function_tool
    def length_of(rope: str) -> str:
        ropes.append(rope)
        return "3 metres"

    async with (
        http_served(says(CALL)) as worker,
        openai.AsyncOpenAI(base_url=worker.base_url, api_key="none") as client,
    ):
        agent = agents.Agent(
            name="shop",
            instructions=SYSTEM,
            model=agents.OpenAIChatCompletionsModel(model="tiny", openai_client=client),
            tools=[length_of],
            tool_use_behavior="stop_on_first_tool",
            model_settings=agents.ModelSettings(include_usage=True),
        )
        first, second = [await agents.Runner.run(agent, "How long is it?") for _ in range(2)]
        streamed = agents.Runner.run_streamed(agent, "How long is it?")
        assert [event async for event in streamed.stream_events()]
    assert ropes == ["blue"] * 3
    assert second.final_output == streamed.final_output == "3 metres"
    assert first.context_wrapper.usage.input_tokens_details.cached_tokens == 0
    for result in (second, streamed):
        usage = result.context_wrapper.usage
        assert usage.input_tokens_details.cached_tokens == usage.input_tokens - 1


async def test_pydantic_ai():
    call = json.dumps({"name": "final_result", "arguments": {"metres": 3}})
    async with http_served(says(f"<tool_call>\n{call}\n</tool_call>")) as worker:
        model = OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=worker.base_url, api_key="none"))
        agent = Agent(model, output_type=Rope, instructions=SYSTEM)
        first, second = [await agent.run("How long is it?") for _ in range(2)]
        async with agent.run_stream("How long is it?") as streamed:
            output = await streamed.get_output()
    assert second.output == output == Rope(metres=3)
    assert first.usage.cache_read_tokens == 0
    assert second.usage.cache_read_tokens == second.usage.input_tokens - 1


def _cached(answer: Any) -> int:
    return int(answer.usage.prompt_tokens_details.cached_tokens)
