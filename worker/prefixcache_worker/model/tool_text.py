"""Tools in conversations whose chat template knows nothing of them: all of it becomes text.

The form is the one that the Hermes models and, after them, Qwen's are trained on, so that a model which
has seen any tools at all is likeliest to have seen these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

TOOL_CALL_BEGIN = "<tool_call>"
TOOL_CALL_END = "</tool_call>"

_INTRODUCTION = """\
You may call functions. These are their signatures, one JSON object a line, within <tools></tools>:
<tools>
{tools}
</tools>
To call a function, answer with its name and its arguments as a JSON object within <tool_call></tool_call>:
<tool_call>
{{"name": <name>, "arguments": <arguments>}}
</tool_call>"""


def tools_as_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The same conversation in turns of system, user and assistant with a role and a content alone.

    Tools are described at the end of a leading system turn, or in one of their own; calls stand behind the
    content of their turn; neighbouring results share one user turn. Order and every text are kept, so a
    longer history begins as the shorter one did. O(characters).
    """
    turns: list[dict[str, Any]] = []
    after_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result and after_result:
            turns[-1]["content"] += "\n" + _result_text(message)
        elif is_result:
            turns.append({"role": "user", "content": _result_text(message)})
        else:
            calls = [_call_text(call["function"]) for call in message.get("tool_calls", ())]
            content = "\n".join([*([message["content"]] if message["content"] else []), *calls])
            turns.append({"role": message["role"], "content": content})
        after_result = is_result
    if tools:
        text = _INTRODUCTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        if turns and turns[0]["role"] == "system":
            turns[0]["content"] += "\n\n" + text
        else:
            turns.insert(0, {"role": "system", "content": text})
    return turns


def _call_text(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"{TOOL_CALL_BEGIN}\n{json.dumps(call, ensure_ascii=False)}\n{TOOL_CALL_END}"


def _result_text(message: Mapping[str, Any]) -> str:
    return f"<tool_response>\n{message['content']}\n</tool_response>"
