"""Answers that call tools: what is said and what is called, however the text arrives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache_worker.server.http.tool_calls import CallArguments, CallBegin, Content, ToolCallParser


class Parsed(NamedTuple):
    content: str
    calls: list[tuple[str, str]]


def parsed(parts: Sequence[str]) -> Parsed:
    parser = ToolCallParser()
    pieces = [piece for part in parts for piece in parser.push(part)] + parser.finish()
    content = ""
    calls: list[tuple[str, str]] = []
    for piece in pieces:
        match piece:
            case Content(text=text):
                assert text
                content += text
            case CallBegin(index=index, name=name):
                assert index == len(calls)
                calls.append((name, ""))
            case CallArguments(index=index, text=text):
                assert index == len(calls) - 1
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
    assert parser.has_called == bool(calls)
    return Parsed(content, calls)


def call_text(name: str, arguments: str, *, newlines: bool = True) -> str:
    newline = "\n" if newlines else ""
    head = f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'
    return f"<tool_call>{newline}{head}{newline}</tool_call>"


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("", "", []),
        ("Hello. \n", "Hello. \n", []),
        ("a < b <tool", "a < b <tool", []),
        (call_text("f", "{}"), "", [("f", "{}")]),
        (call_text("f", '{"a": "}</tool_call>"}', newlines=False), "", [("f", '{"a": "}</tool_call>"}')]),
        (call_text("f", r'{"a": "\"{\\"}'), "", [("f", r'{"a": "\"{\\"}')]),
        (call_text("f", '{"a": [{"b": 1}]}'), "", [("f", '{"a": [{"b": 1}]}')]),
        ("Let me see.\n" + call_text("f", "{}"), "Let me see.", [("f", "{}")]),
        (call_text("f", "{}") + "\n" + call_text("g", "{}") + "\n", "", [("f", "{}"), ("g", "{}")]),
        (call_text("f", "{}") + "Done.", "Done.", [("f", "{}")]),
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')]),
        ('<tool_call>\n{"name": "f"', '<tool_call>\n{"name": "f"', []),
        ("<tool_call>nothing</tool_call> else", "<tool_call>nothing</tool_call> else", []),
        ("<tool_call>" + "x" * 2000, "<tool_call>" + "x" * 2000, []),
    ],
)
def test_text_and_calls_are_told_apart(text: str, content: str, calls: list[tuple[str, str]]):
    for parts in ([text], list(text)):
        assert parsed(parts) == Parsed(content, calls)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(), JSON)
CALLS = st.tuples(st.text(min_size=1, max_size=12), ARGUMENTS)


@given(
    st.text(alphabet="ab<_tool_cl> \n", max_size=20),
    st.lists(CALLS, max_size=3),
    st.lists(st.integers(0, 400), max_size=12),
    st.booleans(),
)
def test_how_the_text_was_cut_does_not_matter(
    before: str, calls: list[tuple[str, dict[str, object]]], cuts: list[int], newlines: bool
):
    expected = [(name, json.dumps(arguments)) for name, arguments in calls]
    blocks = [call_text(name, arguments, newlines=newlines) for name, arguments in expected]
    text = before + "\n".join(blocks)
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    parts = [text[start:end] for start, end in pairwise(edges)]
    assert parsed(parts) == parsed([text])
    if "<tool_call>" not in before:
        assert parsed(parts) == Parsed(before.rstrip() if calls else before, expected)


def test_the_name_comes_before_the_arguments_have_begun():
    parser = ToolCallParser()
    assert parser.push('I look.<tool_call>\n{"name": "f", "arguments": ') == [Content("I look.")]
    assert parser.push('{"a"') == [CallBegin(0, "f"), CallArguments(0, '{"a"')]
    assert parser.push(": 1}") == [CallArguments(0, ": 1}")]
    assert parser.push("}\n</tool_call>") == []
    assert parser.finish() == []
