"""From bodies to the messages that gRPC would have brought, and the names of fields back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_worker.errors import InvalidRequestError
from prefixcache_worker.server.http.bodies import (
    ChatBody,
    ChatMessage,
    CompletionBody,
    ExplainBody,
    Tool,
)
from prefixcache_worker.server.http.tool_grammar import chat_constraint

USUAL_COMPLETION_TOKENS = 16
"""OpenAI's default for completions. A chat answer may fill the context, as there."""

_FIELD_NAMES = {
    "sampling": "",
    "stop_conditions": "",
    "stop_conditions.include_stop": "include_stop_str_in_output",
    "cache.salt": "cache_salt",
    "cache.public_messages": "public_messages",
    "chat": "messages",
    "chat.messages": "messages",
    "chat.tools_json": "tools",
    "constraint.json_schema": "response_format.json_schema.schema",
    "constraint.grammar": "tools",
}
_TOOL_CALL = re.compile(r"(\.tool_calls\[\d+\])\.(name|arguments)(?:_json)?$")


class Translated(NamedTuple):
    """A message, and what its fields are called in the body."""

    message: inference_pb2.GenerateRequest
    field_names: Mapping[str, str]
    """By path in the message; what lies deeper keeps the rest of its path."""

    @contextmanager
    def errors_in_body(self) -> Iterator[None]:
        """Raise InvalidRequestError of the block with the name that the field has in the body."""
        try:
            yield
        except InvalidRequestError as error:
            raise InvalidRequestError(self._name_in_body(error.field_name), error.description) from error

    def _name_in_body(self, path: str) -> str:
        deeper = ""
        while path not in self.field_names and path:
            cut = max(path.rfind("."), path.rfind("["), 0)
            path, deeper = path[:cut], path[cut:] + deeper
        name = (self.field_names.get(path, "") + deeper).removeprefix(".")
        return _TOOL_CALL.sub(r"\1.function.\2", name)


def chat_to_proto(body: ChatBody, *, request_id: str, context_length: int) -> Translated:
    """The request of a chat body. Raises InvalidRequestError for what only this form of it has."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise InvalidRequestError("max_completion_tokens", "is the same as max_tokens: send one of them")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs", "needs logprobs to be true")
    max_name = "max_tokens" if body.max_tokens is not None else "max_completion_tokens"
    message = _message(body, request_id)
    max_tokens = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    message.stop_conditions.max_tokens = context_length if max_tokens is None else max_tokens
    message.chat.messages.extend(map(turn_to_proto, body.messages))
    if body.tools:
        message.chat.tools_json = json.dumps([_plain(tool) for tool in body.tools], ensure_ascii=False)
    if body.logprobs:
        message.logprobs = body.top_logprobs or 0
    if body.public_messages is not None:
        message.cache.public_messages = body.public_messages
    constraint = chat_constraint(body)
    if constraint is not None:
        message.constraint.CopyFrom(constraint)
    names = {"stop_conditions.max_tokens": max_name, "logprobs": "top_logprobs"}
    return Translated(message, _FIELD_NAMES | names)


def completion_to_proto(body: CompletionBody, *, request_id: str) -> list[Translated]:
    """The requests of a completion body: one for each prompt, in their order.

    Raises InvalidRequestError for what only this form of it has.
    """
    template = _message(body, request_id)
    max_tokens = USUAL_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    template.stop_conditions.max_tokens = max_tokens
    template.prefix_id = body.prefix_id or ""
    if body.logprobs is not None:
        template.logprobs = body.logprobs
        if body.echo:
            template.prompt_logprobs = body.logprobs
    names = _FIELD_NAMES | {"prompt_logprobs": "logprobs"}
    prompts = _prompts(body)
    translated = []
    for position, prompt in enumerate(prompts):
        message = inference_pb2.GenerateRequest()
        message.CopyFrom(template)
        if len(prompts) > 1:
            message.request_id = f"{request_id}-{position}"
        place = f"prompt[{position}]" if _is_batch(body) else "prompt"
        if isinstance(prompt, str):
            message.text = prompt
        else:
            message.token_ids.ids.extend(prompt)
        here = {"text": place, "token_ids": place, "token_ids.ids": place, "prompt": place}
        translated.append(Translated(message, names | here))
    return translated


def _message(body: ChatBody | CompletionBody, request_id: str) -> inference_pb2.GenerateRequest:
    """All but the prompt and the number of tokens."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options", "needs stream to be true")
    message = inference_pb2.GenerateRequest(request_id=request_id, n=body.n, priority=body.priority)
    sampling = message.sampling
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
        if (value := getattr(body, name)) is not None:
            setattr(sampling, name, value)
    for name in ("presence_penalty", "frequency_penalty"):
        if (value := getattr(body, name)) is not None:
            setattr(sampling, name, value)
    if body.seed is not None:
        sampling.seed = body.seed % (1 << 64)  # OpenAI's are signed
    for token, bias in (body.logit_bias or {}).items():
        if not (token.isascii() and token.isdigit() and len(token) <= 10 and int(token) < 1 << 32):
            raise InvalidRequestError("logit_bias", f"{token[:20]!r} is not a token id")
        sampling.logit_bias[int(token)] = bias
    stop = message.stop_conditions
    stop.stop.extend([body.stop] if isinstance(body.stop, str) else body.stop or ())
    stop.stop_token_ids.extend(body.stop_token_ids or ())
    if body.min_tokens is not None:
        stop.min_tokens = body.min_tokens
    if body.ignore_eos is not None:
        stop.ignore_eos = body.ignore_eos
    if body.include_stop_str_in_output is not None:
        stop.include_stop = body.include_stop_str_in_output
    message.cache.salt = body.cache_salt or ""
    return message


def explain_to_proto(body: ExplainBody) -> cache_pb2.ExplainRequest:
    """The question of a body. Raises InvalidRequestError unless it has one prompt."""
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("prompt", "or messages: send one of them")
    if body.messages is None:
        return cache_pb2.ExplainRequest(text=body.prompt)
    turns = [turn_to_proto(turn) for turn in body.messages]
    return cache_pb2.ExplainRequest(chat=inference_pb2.ChatMessages(messages=turns))


def turn_to_proto(turn: ChatMessage) -> inference_pb2.ChatMessage:
    """One message of a conversation."""
    content = turn.content
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    calls = [
        inference_pb2.ToolCall(id=call.id, name=call.function.name, arguments_json=call.function.arguments)
        for call in turn.tool_calls or ()
    ]
    return inference_pb2.ChatMessage(
        role=turn.role,
        content=content or "",
        name=turn.name or "",
        tool_calls=calls,
        tool_call_id=turn.tool_call_id or "",
    )


def _plain(tool: Tool) -> dict[str, object]:
    """A tool as it came, without what means nothing to a model."""
    return {"type": "function", "function": tool.function.model_dump(exclude_none=True, exclude={"strict"})}


def _prompts(body: CompletionBody) -> Sequence[str | Sequence[int]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequestError("prompt", "is an empty list; send at least one prompt or token id")
    return prompt if _is_batch(body) else [prompt]  # type: ignore[return-value,list-item]


def _is_batch(body: CompletionBody) -> bool:
    return not isinstance(body.prompt, str) and not isinstance(body.prompt[0], int)
