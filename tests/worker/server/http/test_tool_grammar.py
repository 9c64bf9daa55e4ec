"""What answers a grammar lets through, by the engine that holds models to it."""

from __future__ import annotations

import json
from typing import Any

import llguidance
import pytest

from prefixcache_worker.errors import InvalidRequestError
from prefixcache_worker.server.http.bodies import ChatBody
from prefixcache_worker.server.http.tool_grammar import chat_constraint

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "time"}},
]
ANSWER = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TIME = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'


class _Bytes:
    """A vocabulary of the 256 bytes and one token that ends."""

    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<eos>")

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))


def body(**fields: Any) -> ChatBody:
    return ChatBody.model_validate({"model": "m", "messages": [{"role": "user", "content": "x"}]} | fields)


def takes(chat: ChatBody, text: str) -> bool:
    """Whether the whole of `text` may be the answer."""
    constraint = chat_constraint(chat)
    assert constraint is not None
    assert constraint.WhichOneof("rule") == "grammar"
    grammar = constraint.grammar
    assert not llguidance.LLMatcher.validate_grammar(grammar, TOKENIZER)
    matcher = llguidance.LLMatcher(TOKENIZER, grammar)
    token_ids = list(text.encode())
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("fields", "taken", "refused"),
    [
        (
            {},
            ["", "Hello <tool", WEATHER, TIME, f"{WEATHER}\n{TIME}", f"I look.\n{WEATHER}"],
            [
                "<tool_call>x",
                WEATHER.replace("weather", "other"),
                WEATHER.replace('"Oslo"', "1"),
                WEATHER[:-1],
            ],
        ),
        ({"parallel_tool_calls": False}, ["Hello", WEATHER, f"I look. {TIME}"], [f"{WEATHER}\n{TIME}"]),
        ({"tool_choice": "required"}, [WEATHER, f"{WEATHER}\n{TIME}"], ["", "Hello", f"I look. {WEATHER}"]),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            [TIME],
            [TIME + TIME, "Hello"],
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": "time"}}},
            [TIME],
            [WEATHER, "Hello"],
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER}}},
            ['{"sum": 3}', WEATHER, f"{TIME}\n{WEATHER}"],
            ["Hello", '{"sum": "x"}', f'{{"sum": 3}}{WEATHER}'],
        ),
    ],
)
def test_answers_with_tools(fields: dict[str, Any], taken: list[str], refused: list[str]):
    chat = body(tools=TOOLS, **fields)
    assert [text for text in taken if not takes(chat, text)] == []
    assert [text for text in refused if takes(chat, text)] == []


def test_names_and_schemas_with_quotes_and_other_scripts():
    properties = {'a "quoted" /name': {"enum": ["ü\n\\", "</tool_call>"]}}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    chat = body(tools=[{"type": "function", "function": {"name": "a.b-c_1", "parameters": parameters}}])
    for value in ("ü\n\\", "</tool_call>"):
        call = {"name": "a.b-c_1", "arguments": {'a "quoted" /name': value}}
        assert takes(chat, f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>")
    assert not takes(chat, '<tool_call>{"name": "a.b-c_1", "arguments": {}}</tool_call>')


@pytest.mark.parametrize(
    ("response_format", "schema"),
    [
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER, "strict": True}}, ANSWER),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, {"type": "object"}),
    ],
)
def test_a_response_format_alone_is_a_json_schema(response_format: dict[str, Any], schema: dict[str, Any]):
    constraint = chat_constraint(body(response_format=response_format))
    assert constraint is not None
    assert json.loads(constraint.json_schema) == schema


@pytest.mark.parametrize(
    "fields",
    [{}, {"response_format": {"type": "text"}}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}],
)
def test_what_may_be_any_text_has_no_constraint(fields: dict[str, Any]):
    assert chat_constraint(body(**fields)) is None


@pytest.mark.parametrize(
    ("fields", "field_name"),
    [
        ({"tools": [TOOLS[0], TOOLS[1], TOOLS[0]]}, "tools[2].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
        ),
    ],
)
def test_tools_that_contradict_each_other_are_refused(fields: dict[str, Any], field_name: str):
    with pytest.raises(InvalidRequestError) as caught:
        chat_constraint(body(**fields))
    assert caught.value.field_name == field_name
