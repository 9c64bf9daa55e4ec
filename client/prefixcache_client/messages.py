"""Requests: from Python values to proto messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict

from prefixcache.v1 import inference_pb2 as pb

Message = Mapping[str, str]
"""One chat turn: `{"role": "system" | "user" | "assistant", "content": ...}`."""

Prompt = str | Sequence[int] | Sequence[Message]
"""Plain text, token ids, or a conversation (oldest turn first)."""


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
    seed: int
    """Makes the answer repeatable."""
    stop: str | Sequence[str]
    """The answer ends before the first of these texts."""
    ignore_eos: bool
    """Go on past the model's end-of-text token. Default False."""
    n: int
    """How many independent answers, 1 to 64. They share the prompt's KV. Default 1."""
    use_cache: bool
    """False: compute everything and leave nothing in the cache. Default True."""
    public_tokens: int
    """So many tokens at the prompt's beginning may be shared with every tenant. Default 0."""
    public_messages: int
    """So many chat messages at the prompt's beginning may be shared with every tenant. Default 0."""
    salt: str
    """Requests of one tenant share only when their salts are equal. Default empty."""


def generate_request(
    prompt: Prompt,
    *,
    request_id: str | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    ignore_eos: bool | None = None,
    n: int | None = None,
    use_cache: bool = True,
    public_tokens: int | None = None,
    public_messages: int | None = None,
    salt: str | None = None,
) -> pb.GenerateRequest:
    """The message for one prompt.

    The worker judges the values. Raises TypeError or ValueError, naming the argument, only for what a message
    cannot hold.
    """
    if public_tokens is not None and public_messages is not None:
        raise ValueError("public_tokens and public_messages exclude each other: give one of them")
    request = pb.GenerateRequest()
    _set_prompt(request, prompt)
    _set_fields(request, request_id=request_id, n=n)
    _set_fields(request.sampling, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
    _set_fields(request.stop_conditions, max_tokens=max_tokens, ignore_eos=ignore_eos)
    with _naming("stop"):
        request.stop_conditions.stop.extend([stop] if isinstance(stop, str) else stop)
    mode = None if use_cache else pb.CacheOptions.MODE_OFF
    _set_fields(
        request.cache, mode=mode, public_tokens=public_tokens, public_messages=public_messages, salt=salt
    )
    return request


def chat_messages(messages: str | Sequence[Message], *, system: str | None = None) -> list[Message]:
    """A conversation: a plain text is one user turn; `system`, when given, goes in front."""
    turns: list[Message] = [{"role": "system", "content": system}] if system is not None else []
    return turns + ([{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages))


def tokenize_request(prompt: str | Sequence[Message]) -> pb.TokenizeRequest:
    """The message that asks for the token ids of a text or conversation."""
    request = pb.TokenizeRequest()
    if isinstance(prompt, str):
        _set_fields(request, text=prompt)
    else:
        request.chat.CopyFrom(_chat_proto(prompt))
    return request


def detokenize_request(token_ids: Sequence[int], *, skip_special_tokens: bool) -> pb.DetokenizeRequest:
    """The message that asks for the text of token ids."""
    request = pb.DetokenizeRequest(skip_special_tokens=skip_special_tokens)
    _extend_ids(request.token_ids, token_ids)
    return request


def _set_prompt(request: pb.GenerateRequest, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        _set_fields(request, text=prompt)
    elif len(prompt) and isinstance(prompt[0], Mapping):
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
    chat = pb.ChatMessages()
    for position, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.keys() != {"role", "content"}:
            raise ValueError(f"chat message {position} must have exactly the keys 'role' and 'content'")
        turn = chat.messages.add()
        _set_fields(turn, role=message["role"], content=message["content"])
    return chat


def _set_fields(message: Any, **values: Any) -> None:
    """Set the fields whose value is not None, so that an absent field stays absent."""
    for name, value in values.items():
        if value is not None:
            with _naming(name):
                setattr(message, name, value)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Put the argument's name into the error of a value that a message cannot hold."""
    try:
        yield
    except UnicodeEncodeError:
        raise ValueError(f"{name}: text with half a surrogate pair has no UTF-8 form") from None
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
