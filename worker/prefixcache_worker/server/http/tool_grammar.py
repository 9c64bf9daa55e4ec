"""What a chat answer must look like, from its tools and its response format.

A call is written as `tool_text` says, with the name first, so that a streamed answer can say what is called
before it says with what. Grammars are llguidance's Lark: `%json` is a JSON Schema, a lazy terminal ends as
soon as it can.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from prefixcache.v1 import inference_pb2
from prefixcache_worker.errors import InvalidRequestError
from prefixcache_worker.model.tool_text import TOOL_CALL_BEGIN, TOOL_CALL_END
from prefixcache_worker.server.http.bodies import (
    ChatBody,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedToolChoice,
    Tool,
)

_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Of JSON within a grammar: as `tool_text` writes it, so that a call that comes back in a history has the
tokens that it had; and a model that likes white space would have no end of it."""


def chat_constraint(body: ChatBody) -> inference_pb2.Constraint | None:
    """The constraint of a chat body; None where any text will do. Raises InvalidRequestError.

    An answer that may be either is calls, or else of the response format; where that is text, calls may
    follow text.
    """
    schema = _answer_schema(body)
    tools = _callable_tools(body)
    if not tools:
        return None if schema is None else inference_pb2.Constraint(json_schema=_text(schema))
    must_call = body.tool_choice == "required" or isinstance(body.tool_choice, NamedToolChoice)
    several = body.parallel_tool_calls is not False
    grammar = tool_grammar(tools, answer_schema=schema, must_call=must_call, several=several)
    return inference_pb2.Constraint(grammar=grammar)


def tool_grammar(
    tools: Sequence[Tool], *, answer_schema: dict[str, Any] | None, must_call: bool, several: bool
) -> str:
    """The grammar of answers that call tools, or also of others unless they `must_call`."""
    call = f"{_quoted(TOOL_CALL_BEGIN)} call"
    calls = f'{call} ("\\n"? {call})*' if several else call
    if must_call:
        lines = [f"start: {calls}"]
    elif answer_schema is not None:
        lines = [f"start: {calls} | answer", f"answer: %json {_spaced(answer_schema)}"]
    else:
        start = "(opening call)* TEXT" if several else "opening call | TEXT"
        lines = [
            f"start: {start}",
            f"opening[lazy]: TEXT {_quoted(TOOL_CALL_BEGIN)}",
            r"TEXT: /(.|\n)*/",
        ]
    names = [f"function_{position}" for position in range(len(tools))]
    lines.append(f'call: "\\n"? ({" | ".join(names)}) "}}" "\\n"? {_quoted(TOOL_CALL_END)}')
    for name, tool in zip(names, tools, strict=True):
        head = _quoted(f'{{"name": {json.dumps(tool.function.name)}, "arguments": ')
        lines.append(f"{name}: {head} {name}_arguments")
        lines.append(f"{name}_arguments: %json {_spaced(_arguments_schema(tool))}")
    return "\n".join(lines)


def _callable_tools(body: ChatBody) -> list[Tool]:
    """The tools that this answer may call."""
    tools = body.tools or []
    names = [tool.function.name for tool in tools]
    for position, name in enumerate(names):
        if name in names[:position]:
            raise InvalidRequestError(f"tools[{position}].function.name", f"{name!r} is there twice")
    choice = body.tool_choice
    if choice == "none":
        return []
    if not tools and choice is not None and choice != "auto":
        raise InvalidRequestError("tool_choice", "needs tools")
    if isinstance(choice, NamedToolChoice):
        if choice.function.name not in names:
            raise InvalidRequestError(
                "tool_choice.function.name", f"{choice.function.name!r} is none of the tools"
            )
        return [tools[names.index(choice.function.name)]]
    return tools


def _answer_schema(body: ChatBody) -> dict[str, Any] | None:
    match body.response_format:
        case JsonObjectFormat():
            return _ANY_OBJECT
        case JsonSchemaFormat(json_schema=json_schema):
            return _ANY_OBJECT if json_schema.schema_ is None else json_schema.schema_
    return None


def _arguments_schema(tool: Tool) -> dict[str, Any]:
    # A call's arguments are an object even where the tool does not say so.
    return _ANY_OBJECT | (tool.function.parameters or {})


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False)


def _spaced(schema: dict[str, Any]) -> str:
    return _text(schema | {"x-guidance": _SPACING})


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
