"""Requests: from Python values to proto messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict, Unpack

from prefixcache.v1 import cache_pb2
from prefixcache.v1 import inference_pb2 as pb

Message = Mapping[str, str]
"""One chat turn: `{"role": "system" | "user" | "assistant", "content": ...}`."""

Prompt = str | Sequence[int] | Sequence[Message]
"""Plain text, token ids, or a conversation (oldest turn first)."""


def is_token_ids(prompt: Prompt) -> bool:
    """Whether it is a sequence of token ids, with at least one."""
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], int)


_RULES = ("json_schema", "regex", "grammar")


class GenerateOptions(TypedDict, total=False):
    """The keyword arguments of `generate`, `stream` and `chat`. One left out takes the worker's default."""

    request_id: str
    """A name for the request, unique among the live ones. The worker makes one up."""
    max_tokens: int
    """At most this many tokens per answer, at least 1. Default 256."""
    temperature: float
    """0 always takes the likeliest token. Default 1.0."""
    top_p: float
    """Keep the smallest set of tokens whose probability reaches this, in (0, 1]. Default 1.0."""
    top_k: int
    """Keep this many likeliest tokens; 0 keeps all. Default 0."""
    min_p: float
    """Keep tokens at least so many times as likely as the likeliest, 0 to 1. Default 0."""
    repetition_penalty: float
    """Above 1 makes tokens of the prompt and of the answer less likely, 0.1 to 10. Default 1.0."""
    presence_penalty: float
    """Taken from the logit of every token that the answer has, -2 to 2. Default 0."""
    frequency_penalty: float
    """Taken from a token's logit once for each time that the answer has it, -2 to 2. Default 0."""
    logit_bias: Mapping[int, float]
    """Added to the logits of these token ids; at most 300, each -100 to 100."""
    seed: int
    """Makes the answer repeatable."""
    stop: str | Sequence[str]
    """The answer ends before the first of these texts."""
    stop_token_ids: Sequence[int]
    """The answer ends with the first of these tokens, whose text is left out."""
    include_stop: bool
    """Let the answer end with the text that stopped it. Default False."""
    min_tokens: int
    """At least this many tokens per answer. Default 0."""
    ignore_eos: bool
    """Go on past the model's end-of-text token. Default False."""
    json_schema: str | Mapping[str, Any]
    """Answer with a JSON text that this JSON Schema holds for: the schema's own JSON text, or its value."""
    regex: str
    """Answer with a text that all of this regular expression matches."""
    grammar: str
    """Answer with a text of this context-free grammar, in Lark's notation, from its rule `start` on."""
    logprobs: int
    """Tell the log-probability of each output token and of so many of the likeliest in its place, 0 to 20."""
    prompt_logprobs: int
    """The same for the tokens of the prompt, which are all computed then."""
    n: int
    """How many independent answers, 1 to 64. They share the prompt's KV. Default 1."""
    priority: int
    """Higher ones go first, and running ones of a lower priority give way to them; -100 to 100. Default 0."""
    use_cache: bool
    """False: compute everything and leave nothing in the cache. Default True."""
    public_tokens: int
    """So many tokens at the prompt's beginning may be shared with every tenant. Default 0."""
    public_messages: int
    """So many chat messages at the prompt's beginning may be shared with every tenant. Default 0."""
    salt: str
    """Requests of one tenant share only when their salts are equal. Default empty."""
    cache_priority: int
    """What the request leaves in the cache is evicted after what has a lower one; 0 to 100. Default 0."""
    cache_priority_seconds: float
    """How long that holds, above 0. Default: until it is evicted."""
    prefix: str
    """The id of a kept prefix that goes in front of the prompt, which is then text or token ids."""


def generate_request(prompt: Prompt, **options: Unpack[GenerateOptions]) -> pb.GenerateRequest:
    """The message for one prompt. An option that is None counts as left out.

    The worker judges the values. Raises TypeError or ValueError, naming the argument, only for what a message
    cannot hold.
    """
    known = GenerateOptions.__annotations__
    for name in options:
        if name not in known:
            raise TypeError(f"there is no option {name!r}; there are {', '.join(known)}")
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if "public_tokens" in given and "public_messages" in given:
        raise ValueError("public_tokens and public_messages exclude each other: give one of them")
    if len(given.keys() & _RULES) > 1:
        raise ValueError("json_schema, regex and grammar exclude each other: give one of them")
    request = pb.GenerateRequest()
    _set_prompt(request, prompt)
    _set_given(request, given, "request_id", "n", "priority", "logprobs", "prompt_logprobs")
    _set_given(request.sampling, given, "temperature", "top_p", "top_k", "min_p", "seed")
    _set_given(request.sampling, given, "repetition_penalty", "presence_penalty", "frequency_penalty")
    if "logit_bias" in given:
        with _naming("logit_bias"):
            request.sampling.logit_bias.update(given["logit_bias"])
    _set_given(request.stop_conditions, given, "max_tokens", "min_tokens", "ignore_eos", "include_stop")
    if "stop" in given:
        stop = given["stop"]
        with _naming("stop"):
            request.stop_conditions.stop.extend([stop] if isinstance(stop, str) else stop)
    if "stop_token_ids" in given:
        with _naming("stop_token_ids"):
            request.stop_conditions.stop_token_ids.extend(given["stop_token_ids"])
    if not given.get("use_cache", True):
        request.cache.mode = pb.CacheOptions.MODE_OFF
    _set_given(request.cache, given, "public_tokens", "public_messages", "salt")
    if isinstance(schema := given.get("json_schema", ""), Mapping):
        with _naming("json_schema"):
            given["json_schema"] = json.dumps(schema)
    if given.keys() & _RULES:
        _set_given(request.constraint, given, *_RULES)
    for name, field in (("cache_priority", "priority"), ("cache_priority_seconds", "priority_seconds")):
        if name in given:
            _set(request.cache, field, given[name], called=name)
    if "prefix" in given:
        _set(request, "prefix_id", given["prefix"], called="prefix")
    return request


def create_prefix_request(
    prompt: Prompt, *, public: bool, salt: str, ttl_seconds: float | None, label: str
) -> cache_pb2.CreatePrefixRequest:
    """The message that asks to keep a prefix. Raises TypeError or ValueError like `generate_request`."""
    request = cache_pb2.CreatePrefixRequest(public=public)
    _set_prompt(request, prompt)
    _set(request, "salt", salt)
    _set(request, "label", label)
    if ttl_seconds is not None:
        _set(request, "ttl_seconds", ttl_seconds)
    return request


def update_prefix_request(
    prefix_id: str, *, ttl_seconds: float | None, label: str | None
) -> cache_pb2.UpdatePrefixRequest:
    """The message that changes what is given."""
    request = cache_pb2.UpdatePrefixRequest()
    _set(request, "prefix_id", prefix_id)
    if ttl_seconds is not None:
        _set(request, "ttl_seconds", ttl_seconds)
    if label is not None:
        _set(request, "label", label)
    return request


def explain_request(
    prompt: Prompt, *, public_tokens: int | None, public_messages: int | None, salt: str
) -> cache_pb2.ExplainRequest:
    """The message that asks why a prompt is not cached. Raises as `generate_request` does."""
    if None not in (public_tokens, public_messages):
        raise ValueError("public_tokens and public_messages exclude each other: give one of them")
    options = {"public_tokens": public_tokens, "public_messages": public_messages, "salt": salt}
    given = {name: value for name, value in options.items() if value is not None}
    request = cache_pb2.ExplainRequest()
    _set_prompt(request, prompt)
    _set_given(request.cache, given, *given)
    return request


def chat_messages(messages: str | Sequence[Message], *, system: str | None = None) -> list[Message]:
    """A conversation: a plain text is one user turn; `system`, when given, goes in front.

    Raises TypeError or ValueError for what is no conversation.
    """
    turns: list[Message] = [{"role": "system", "content": system}] if system is not None else []
    if isinstance(messages, str):
        turns.append({"role": "user", "content": messages})
    else:
        _require_messages(messages)
        turns.extend(messages)
    if not turns:
        raise ValueError("the chat has no messages: it needs at least one")
    return turns


def tokenize_request(prompt: str | Sequence[Message]) -> pb.TokenizeRequest:
    """The message that asks for the token ids of a text or conversation."""
    request = pb.TokenizeRequest()
    if isinstance(prompt, str):
        _set(request, "text", prompt)
    else:
        request.chat.CopyFrom(_chat_proto(prompt))
    return request


def detokenize_request(token_ids: Sequence[int], *, skip_special_tokens: bool) -> pb.DetokenizeRequest:
    """The message that asks for the text of token ids."""
    _require_list(token_ids, "token ids are a list of integers")
    request = pb.DetokenizeRequest(skip_special_tokens=skip_special_tokens)
    _extend_ids(request.token_ids, token_ids)
    return request


def _set_prompt(
    request: pb.GenerateRequest | cache_pb2.ExplainRequest | cache_pb2.CreatePrefixRequest, prompt: Prompt
) -> None:
    if isinstance(prompt, str):
        _set(request, "text", prompt)
        return
    _require_list(prompt, "a prompt is text, token ids or chat messages")
    if len(prompt) and isinstance(prompt[0], Mapping):
        request.chat.CopyFrom(_chat_proto(prompt))  # type: ignore[arg-type]  # the first element decides
    else:
        request.token_ids.SetInParent()  # an empty list is token ids too, which the worker refuses by name
        _extend_ids(request.token_ids.ids, prompt)


def _extend_ids(field: Any, token_ids: Sequence[Any]) -> None:
    try:
        field.extend(token_ids)
    except (TypeError, ValueError) as error:
        raise type(error)(f"token ids must be integers from 0 to 4294967295: {error}") from None


def _chat_proto(messages: Sequence[Message]) -> pb.ChatMessages:
    _require_messages(messages)
    chat = pb.ChatMessages()
    for message in messages:
        turn = chat.messages.add()
        _set(turn, "role", message["role"])
        _set(turn, "content", message["content"])
    return chat


def _require_messages(messages: Sequence[Any]) -> None:
    _require_list(messages, "a chat is text or a list of messages")
    for position, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.keys() != {"role", "content"}:
            raise ValueError(
                f"chat message {position} must be a mapping with exactly the keys 'role' and 'content'"
            )


def _require_list(value: Any, wanted: str) -> None:
    """Raise TypeError unless the value has elements in an order. Bytes are refused: they are no token ids."""
    if isinstance(value, bytes | bytearray | memoryview | Mapping) or not hasattr(value, "__getitem__"):
        raise TypeError(f"{wanted}, not {type(value).__name__}")


def _set_given(message: Any, given: Mapping[str, Any], *names: str) -> None:
    """Set those of the fields `names` that were given; the others stay absent."""
    for name in names:
        if name in given:
            _set(message, name, given[name])


def _set(message: Any, name: str, value: Any, *, called: str | None = None) -> None:
    """Set a field, which the caller knows by another name if one is given."""
    try:  # a load generator comes here so often that a context manager would be felt
        setattr(message, name, value)
    except (TypeError, ValueError) as error:
        raise _named(called or name, error) from None


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Put the argument's name into the error of a value that a message cannot hold."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise _named(name, error) from None


def _named(name: str, error: TypeError | ValueError) -> TypeError | ValueError:
    if isinstance(error, UnicodeEncodeError):
        return ValueError(f"{name}: text with half a surrogate pair has no UTF-8 form")
    return type(error)(f"{name}: {error}")
