"""Conversations: from messages to what a chat template renders."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from prefixcache.v1 import inference_pb2
from prefixcache_worker.errors import InvalidRequestError
from prefixcache_worker.server.validation.bounds import require

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_TOOLS = 128


def chat_turns(messages: Iterable[inference_pb2.ChatMessage]) -> list[dict[str, Any]]:
    """The turns as chat templates know them. Raises InvalidRequestError.

    A developer is the system. Arguments of calls are objects, since templates write them as JSON themselves.
    """
    return [_turn(message, f"chat.messages[{position}]") for position, message in enumerate(messages)]


def chat_tools(tools_json: str) -> list[dict[str, Any]]:
    """The tools of a conversation; of each, the function has a name. Raises InvalidRequestError."""
    if not tools_json:
        return []
    tools = _parsed(tools_json, "chat.tools_json")
    require(isinstance(tools, list), "chat.tools_json", "is not a JSON array")
    require(
        len(tools) <= MAX_TOOLS, "chat.tools_json", f"has {len(tools)} tools; at most {MAX_TOOLS} are taken"
    )
    for position, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        require(
            isinstance(function, dict)
            and isinstance(function.get("name"), str)
            and function["name"] != ""
            and isinstance(function.get("parameters", {}), dict),
            f"chat.tools_json[{position}]",
            'is not {"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}',
        )
    return list(tools)


def _turn(message: inference_pb2.ChatMessage, field_name: str) -> dict[str, Any]:
    require(message.role in ROLES, f"{field_name}.role", f"is not one of {', '.join(ROLES)}")
    role = "system" if message.role == "developer" else message.role
    turn: dict[str, Any] = {"role": role, "content": message.content}
    if message.tool_calls:
        require(role == "assistant", f"{field_name}.tool_calls", "only an assistant calls tools")
        turn["tool_calls"] = [
            _call(call, f"{field_name}.tool_calls[{position}]")
            for position, call in enumerate(message.tool_calls)
        ]
    if message.tool_call_id:
        require(role == "tool", f"{field_name}.tool_call_id", "only a tool's turn is the result of a call")
        turn["tool_call_id"] = message.tool_call_id
    if message.name:
        turn["name"] = message.name
    return turn


def _call(call: inference_pb2.ToolCall, field_name: str) -> dict[str, Any]:
    require(call.name != "", f"{field_name}.name", "is missing")
    arguments = _parsed(call.arguments_json or "{}", f"{field_name}.arguments_json")
    require(isinstance(arguments, dict), f"{field_name}.arguments_json", "is not a JSON object")
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _parsed(text: str, field_name: str) -> Any:
    try:
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half a character is no text
        return value
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(field_name, f"is not valid JSON: {error}") from error
