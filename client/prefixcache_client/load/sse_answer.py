"""An answer of OpenAI's HTTP, read chunk by chunk."""

from __future__ import annotations

from typing import Any, TypeVar

from prefixcache_client.load.target import Answered, Refused, require_cached_within, token_gaps
from prefixcache_client.messages import Prompt, is_token_ids
from prefixcache_client.read_json import read_json

_Untold = TypeVar("_Untold", int, None)

_MOST_TOKENS = 2**32 - 1
"""No request has more: what is beyond would make figures of nonsense."""


class SseAnswer:
    """Joins the chunks of one stream of server-sent events."""

    def __init__(self) -> None:
        self._moments: list[float] = []
        self._texts: list[str] = []
        self._usage: dict[str, Any] | None = None
        self.is_done = False
        """Whether the last event has come."""

    def push(self, data: bytes, moment: float) -> None:
        """Take the data of an event that came at this moment. Raises Refused for an error, or no chunk."""
        if data == b"[DONE]":
            self.is_done = True
            return
        try:
            chunk = read_json(data)
            error, usage, choices = chunk.get("error"), chunk.get("usage"), chunk.get("choices") or ()
            texts = [_text(choice) for choice in choices]
        except (ValueError, TypeError, AttributeError):
            raise Refused("BAD_ANSWER", f"an event of the answer is no chunk: {data[:200]!r}") from None
        if error is not None:
            message = error.get("message") if isinstance(error, dict) else error
            code = error.get("code") if isinstance(error, dict) else None
            raise Refused(str(code or "ERROR"), str(message))
        if isinstance(usage, dict):
            self._usage = usage
        if any(said or thought for said, thought in texts):
            self._moments.append(moment)
            self._texts.extend(said for said, _ in texts)

    def finish(self, prompt: Prompt) -> Answered:
        """The answer. Raises Refused when the stream ended too early, or its counts cannot be."""
        if not self.is_done:
            raise Refused("CONNECTION", "the answer ended before it was complete")
        usage = self._usage or {}
        details = usage.get("prompt_tokens_details")
        moments = self._moments
        told_tokens = _count(usage, "prompt_tokens", None)
        cached_tokens = _count(details, "cached_tokens", None) if isinstance(details, dict) else None
        if cached_tokens is not None and told_tokens is not None:
            require_cached_within(told_tokens, cached_tokens)
        return Answered(
            first_token=moments[0] if moments else None,
            token_gaps=token_gaps(moments),
            text="".join(self._texts),
            token_ids=(),
            prompt_tokens=len(prompt) if told_tokens is None and is_token_ids(prompt) else told_tokens,
            cached_tokens=cached_tokens,
            output_tokens=_count(usage, "completion_tokens", len(moments)),
        )


def _count(usage: dict[str, Any], name: str, untold: _Untold) -> int | _Untold:
    """What is told by this name, if anything is. Raises Refused for what is no count of tokens."""
    value = usage.get(name)
    if value is None:
        return untold
    if type(value) is not int or not 0 <= value <= _MOST_TOKENS:
        raise Refused("BAD_ANSWER", f"its usage cannot be: {name} is {value!r:.40}")
    return value


def _text(choice: dict[str, Any]) -> tuple[str, str]:
    """What a chunk says of one choice: the text of its answer, and of the thoughts before it."""
    delta = choice.get("delta")
    if delta is None:
        return str(choice.get("text") or ""), ""
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    return str(delta.get("content") or ""), str(thought or "")
