"""Prompts: from messages to token ids."""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_worker.errors import InvalidRequestError
from prefixcache_worker.server.served_model import ServedModel
from prefixcache_worker.server.validation.bounds import known_ids, require
from prefixcache_worker.server.validation.chat import chat_tools, chat_turns

MAX_CHARACTERS_PER_TOKEN = 64
"""Text with more characters than this for each token of the context is refused before it is tokenised."""


def token_ids_from_tokenize(message: inference_pb2.TokenizeRequest, *, model: ServedModel) -> list[int]:
    """The ids of a text (which may be empty) or a conversation, however many they are."""
    match message.WhichOneof("prompt"):
        case "text":
            return _encode_text(message.text, model)
        case "chat":
            return _encode_chat(message.chat, model, add_generation_prompt=True)
    raise InvalidRequestError("prompt", "is missing; set text or chat")


def token_ids_from_detokenize(message: inference_pb2.DetokenizeRequest, *, model: ServedModel) -> list[int]:
    """The ids to turn into text; none is fine, and at most as many as the context takes."""
    num_ids = len(message.token_ids)
    require(
        num_ids <= model.context_length,
        "token_ids",
        f"has {num_ids} ids; at most {model.context_length}, the context, are taken",
    )
    return known_ids(message.token_ids, "token_ids", model.vocabulary_size)


def num_public_tokens(
    message: inference_pb2.GenerateRequest | cache_pb2.ExplainRequest,
    token_ids: Sequence[int],
    model: ServedModel,
) -> int:
    """How many tokens of a prompt the message declares public."""
    options = message.cache
    match options.WhichOneof("public_prefix"):
        case "public_tokens":
            require(
                options.public_tokens <= len(token_ids),
                "cache.public_tokens",
                f"{options.public_tokens} of {len(token_ids)} prompt tokens cannot be public",
            )
            return options.public_tokens
        case "public_messages" if options.public_messages:
            public = inference_pb2.ChatMessages(
                messages=message.chat.messages[: options.public_messages], tools_json=message.chat.tools_json
            )
            return _common_prefix_length(_encode_turns(public, model, add_generation_prompt=False), token_ids)
    return 0


def prompt_token_ids(
    message: inference_pb2.GenerateRequest | cache_pb2.ExplainRequest | cache_pb2.CreatePrefixRequest,
    model: ServedModel,
) -> list[int]:
    """The ids of a prompt, at least one and one less than the context takes."""
    field_name = message.WhichOneof("prompt")
    match field_name:
        case "text":
            token_ids = _encode_text(message.text, model)
        case "token_ids":
            _check_prompt_length(len(message.token_ids.ids), field_name, model)
            token_ids = known_ids(message.token_ids.ids, "token_ids.ids", model.vocabulary_size)
        case "chat":
            token_ids = _encode_chat(message.chat, model, add_generation_prompt=True)
        case _:
            raise InvalidRequestError("prompt", "is missing; set text, token_ids or chat")
    _check_prompt_length(len(token_ids), field_name, model)
    return token_ids


def prefix_token_ids(message: cache_pb2.CreatePrefixRequest, model: ServedModel) -> list[int]:
    """The ids of a prefix: at least one block, less than the context takes. Chat opens no answer."""
    field_name = message.WhichOneof("prompt")
    match field_name:
        case "chat":
            token_ids = _encode_chat(message.chat, model, add_generation_prompt=False)
            _check_prompt_length(len(token_ids), field_name, model)
        case _:
            token_ids = prompt_token_ids(message, model)
    require(
        len(token_ids) >= model.block_size,
        field_name or "prompt",
        f"has {len(token_ids)} tokens; a prefix needs at least {model.block_size}, a block",
    )
    return token_ids


def continued_token_ids(
    message: inference_pb2.GenerateRequest, prefix: Sequence[int], model: ServedModel
) -> list[int]:
    """The ids of a prefix and of the prompt behind it, which may add nothing."""
    field_name = message.WhichOneof("prompt")
    match field_name:
        case "text":
            _check_text_length(len(message.text), "text", model)
            token_ids = model.tokenizer.encode(message.text, add_special=False)
        case "token_ids":
            _check_prompt_length(len(prefix) + len(message.token_ids.ids), field_name, model)
            token_ids = known_ids(message.token_ids.ids, "token_ids.ids", model.vocabulary_size)
        case "chat":
            raise InvalidRequestError(
                "chat",
                "cannot go on behind a prefix; send text, or the whole chat without prefix_id: what is kept "
                "of it is found",
            )
        case _:
            raise InvalidRequestError("prompt", "is missing; set text or token_ids")
    _check_prompt_length(len(prefix) + len(token_ids), field_name, model)
    return [*prefix, *token_ids]


def _check_prompt_length(num_tokens: int, field_name: str, model: ServedModel) -> None:
    require(num_tokens > 0, field_name, "has no tokens; a prompt needs at least one")
    require(
        num_tokens < model.context_length,  # one place at least is for the answer
        field_name,
        f"has {num_tokens} tokens; the context of {model.context_length} takes a prompt "
        f"of at most {model.context_length - 1}",
    )


def _encode_text(text: str, model: ServedModel) -> list[int]:
    _check_text_length(len(text), "text", model)
    return model.tokenizer.encode(text, add_special=True)


def _encode_chat(
    message: inference_pb2.ChatMessages, model: ServedModel, *, add_generation_prompt: bool
) -> list[int]:
    turns = message.messages
    require(
        1 <= len(turns) <= model.context_length,  # no turn renders to less than a token
        "chat.messages",
        f"has {len(turns)} messages; with this context 1 to {model.context_length} are taken",
    )
    num_characters = len(message.tools_json) + sum(map(_num_characters, turns))
    _check_text_length(num_characters, "chat", model)
    return _encode_turns(message, model, add_generation_prompt=add_generation_prompt)


def _encode_turns(
    message: inference_pb2.ChatMessages, model: ServedModel, *, add_generation_prompt: bool
) -> list[int]:
    if model.chat_template is None:
        raise InvalidRequestError("chat", "this model has no chat template; send text or token_ids")
    text = model.chat_template.render(
        chat_turns(message.messages),
        tools=chat_tools(message.tools_json),
        add_generation_prompt=add_generation_prompt,
    )
    return model.tokenizer.encode(text, add_special=False)  # the template writes what the model wants


def _num_characters(turn: inference_pb2.ChatMessage) -> int:
    calls = sum(len(call.name) + len(call.arguments_json) for call in turn.tool_calls)
    return len(turn.content) + len(turn.name) + calls


def _check_text_length(num_characters: int, field_name: str, model: ServedModel) -> None:
    most = MAX_CHARACTERS_PER_TOKEN * model.context_length
    require(
        num_characters <= most,
        field_name,
        f"has {num_characters} characters; with a context of {model.context_length} tokens "
        f"at most {most} are taken",
    )


def _common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    for length, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return length
    return min(len(first), len(second))
