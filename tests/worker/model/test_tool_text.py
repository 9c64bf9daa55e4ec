"""Tools in conversations: as templates that know them write them, and as text for those that do not."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from prefixcache_worker.model.chat_template import ChatTemplate
from prefixcache_worker.model.tool_text import tools_as_text

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "time", "description": "In <UTC> & \u00fc."}},
]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


CALLS = [call("weather", city="K\u00f6ln"), call("time")]
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather and time?"},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [call("weather", city="K\u00f6ln"), call("time")],
    },
    {"role": "tool", "content": "Rain.", "tool_call_id": "c1"},
    {"role": "tool", "content": "Noon.", "tool_call_id": "c2", "name": "time"},
    {"role": "assistant", "content": "Rain at noon."},
]
KNOWS_TOOLS = """\
{%- if tools %}
{{- '<tools>' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ '</tools>' }}
{%- endif %}
{%- for message in messages %}
{{- '[' + message.role + ']' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '(' + call.function.name + ' ' + (call.function.arguments | tojson) + ')' }}
{%- endfor %}
{%- if message.role == 'tool' %}{{ '#' + message.tool_call_id }}{% endif %}
{%- endfor %}"""
KNOWS_NONE = "{% for message in messages %}[{{ message.role }}]{{ message.content }}\n{% endfor %}"


def rendered(template: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    chat_template = ChatTemplate(template, special_tokens={}, source="test")
    return chat_template.render(messages, tools=tools, add_generation_prompt=False)


@pytest.mark.parametrize("tools", [TOOLS, []])
def test_a_template_that_takes_tools_gets_what_transformers_gives_it(tools: list[dict[str, Any]]):
    expected, _ = render_jinja_template(
        conversations=[CONVERSATION], tools=tools or None, chat_template=KNOWS_TOOLS
    )
    assert rendered(KNOWS_TOOLS, CONVERSATION, tools) == expected[0]


def test_a_template_that_takes_none_gets_text():
    text = rendered(KNOWS_NONE, CONVERSATION, TOOLS)
    assert text == (
        "[system]Be brief.\n"
        "\n"
        "You may call functions. These are their signatures, one JSON object a line, "
        "within <tools></tools>:\n"
        "<tools>\n"
        '{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}\n'
        '{"type": "function", "function": {"name": "time", "description": "In <UTC> & \u00fc."}}\n'
        "</tools>\n"
        "To call a function, answer with its name and its arguments as a JSON object within "
        "<tool_call></tool_call>:\n"
        "<tool_call>\n"
        '{"name": <name>, "arguments": <arguments>}\n'
        "</tool_call>\n"
        "[user]Weather and time?\n"
        "[assistant]I look.\n"
        "<tool_call>\n"
        '{"name": "weather", "arguments": {"city": "K\u00f6ln"}}\n'
        "</tool_call>\n"
        "<tool_call>\n"
        '{"name": "time", "arguments": {}}\n'
        "</tool_call>\n"
        "[user]<tool_response>\n"
        "Rain.\n"
        "</tool_response>\n"
        "<tool_response>\n"
        "Noon.\n"
        "</tool_response>\n"
        "[assistant]Rain at noon.\n"
    )


def test_without_tools_a_conversation_is_rendered_as_it_is():
    plain = [CONVERSATION[0], CONVERSATION[1], CONVERSATION[5]]
    assert rendered(KNOWS_NONE, plain, []) == (
        "[system]Be brief.\n[user]Weather and time?\n[assistant]Rain at noon.\n"
    )


def test_a_conversation_without_a_system_turn_gets_one():
    turns = tools_as_text(CONVERSATION[1:], TOOLS)
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "user", "assistant"]
    assert turns[0]["content"].startswith("You may call functions.")
    assert all(turn.keys() == {"role", "content"} for turn in turns)


def test_a_longer_conversation_begins_as_the_shorter_one_did():
    """Results that follow join the turn before them, so that only the end of the text changes."""
    for length in range(2, len(CONVERSATION)):
        shorter = rendered(KNOWS_NONE, CONVERSATION[:length], TOOLS)
        assert rendered(KNOWS_NONE, CONVERSATION[: length + 1], TOOLS).startswith(shorter.rstrip("\n"))


def test_the_messages_themselves_stay_as_they_are():
    before = [dict(message) for message in CONVERSATION]
    rendered(KNOWS_NONE, CONVERSATION, TOOLS)
    assert before == CONVERSATION
