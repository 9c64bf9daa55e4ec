"""Conversations with tools, as gRPC brings them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.tiny_loaded_model import byte_tokenizer
from support.validated_requests import checked, served_model

from prefixcache.v1 import inference_pb2 as pb
from prefixcache_worker.errors import InvalidRequestError
from prefixcache_worker.server.validation.chat import MAX_TOOLS, chat_tools, chat_turns

MODEL = served_model(context_length=4096)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat(*turns: pb.ChatMessage, tools: Any = None) -> pb.GenerateRequest:
    tools_json = "" if tools is None else tools if isinstance(tools, str) else json.dumps(tools)
    return pb.GenerateRequest(chat=pb.ChatMessages(messages=turns, tools_json=tools_json))


def called(arguments_json: str = "{}", *, role: str = "assistant", name: str = "f") -> pb.ChatMessage:
    return pb.ChatMessage(
        role=role, tool_calls=[pb.ToolCall(id="c", name=name, arguments_json=arguments_json)]
    )


USER = pb.ChatMessage(role="user", content="hi")


def test_turns_become_what_templates_know():
    turns = chat_turns(
        [
            pb.ChatMessage(role="developer", content="Be kind."),
            pb.ChatMessage(role="user", content="hi", name="Ann"),
            called('{"a": [1]}'),
            pb.ChatMessage(role="tool", content="2", tool_call_id="c"),
        ]
    )
    function = {"name": "f", "arguments": {"a": [1]}}
    assert turns == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi", "name": "Ann"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "c"},
    ]
    assert chat_tools(json.dumps([TOOL])) == [TOOL]
    assert chat_tools("") == []


def test_tools_are_part_of_the_prompt_and_of_what_is_public():
    request = checked(chat(USER, tools=[TOOL]), MODEL)
    text = byte_tokenizer().decode(request.prompt_token_ids, skip_special_tokens=False)
    assert json.dumps(TOOL) in text
    message = chat(pb.ChatMessage(role="system", content="Be kind."), USER, tools=[TOOL])
    message.cache.public_messages = 1
    public = checked(message, MODEL)
    beginning = byte_tokenizer().decode(
        public.prompt_token_ids[: public.num_public_tokens], skip_special_tokens=False
    )
    assert beginning.startswith("<|turn|>system\nBe kind.")
    assert json.dumps(TOOL) in beginning
    assert "<|turn|>user" not in beginning


@pytest.mark.parametrize(
    ("message", "field_name", "description"),
    [
        (chat(called(role="user")), "chat.messages[0].tool_calls", "only an assistant calls tools"),
        (chat(USER, called("[1]")), "chat.messages[1].tool_calls[0].arguments_json", "is not a JSON object"),
        (chat(called("{")), "chat.messages[0].tool_calls[0].arguments_json", "is not valid JSON"),
        (chat(called('{"a": "\\ud800"}')), "chat.messages[0].tool_calls[0].arguments_json", "is not valid"),
        (chat(called("[" * 100_000)), "chat.messages[0].tool_calls[0].arguments_json", "is not valid JSON"),
        (chat(called(name="")), "chat.messages[0].tool_calls[0].name", "is missing"),
        (
            chat(pb.ChatMessage(role="user", tool_call_id="c")),
            "chat.messages[0].tool_call_id",
            "only a tool's turn",
        ),
        (chat(USER, tools="{"), "chat.tools_json", "is not valid JSON"),
        (chat(USER, tools={}), "chat.tools_json", "is not a JSON array"),
        (chat(USER, tools=[TOOL] * (MAX_TOOLS + 1)), "chat.tools_json", "has 129 tools; at most 128"),
        (chat(USER, tools=[TOOL, 1]), "chat.tools_json[1]", "is not {"),
        (chat(USER, tools=[{"type": "function"}]), "chat.tools_json[0]", "is not {"),
        (chat(USER, tools=[{"type": "function", "function": {"name": ""}}]), "chat.tools_json[0]", "is not"),
        (chat(USER, tools=[TOOL | {"type": "web"}]), "chat.tools_json[0]", "is not {"),
        (chat(USER, tools=" " * 300_000), "chat", "has 300002 characters"),
    ],
)
def test_what_is_no_conversation_with_tools_is_refused(
    message: pb.GenerateRequest, field_name: str, description: str
):
    with pytest.raises(InvalidRequestError) as caught:
        checked(message, MODEL)
    assert caught.value.field_name == field_name
    assert description in caught.value.description
