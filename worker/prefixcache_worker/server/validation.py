"""Every bound on what a client may send: messages become checked values here or nowhere.

All functions raise InvalidRequestError, naming the field by its path in the message, and nothing else.
They may take as long as tokenising takes; nothing in them waits.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prefixcache import Namespace
from prefixcache.v1 import inference_pb2
from prefixcache_worker.engine.request import Request, SamplingParams, StopConditions
from prefixcache_worker.errors import InvalidRequestError
from prefixcache_worker.server.served_model import ServedModel

TENANT_KEY = "x-tenant-id"
DEFAULT_TENANT = "default"
MAX_TENANT_LENGTH = 128
MAX_REQUEST_ID_LENGTH = 256
MAX_TEMPERATURE = 100.0
MIN_REPETITION_PENALTY = 0.1
MAX_REPETITION_PENALTY = 10.0
MAX_PENALTY = 2.0
MAX_BIASES = 300
MAX_BIAS = 100.0
MAX_CHOICES = 64
MAX_PRIORITY = 100
MAX_STOP_TEXTS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_TOP_LOGPROBS = 20
MAX_SALT_BYTES = 64 * 1024
MAX_CHARACTERS_PER_TOKEN = 64
"""Text with more characters than this for each token of the context is refused before it is tokenised."""
ROLES = ("system", "user", "assistant")

_CacheMode = inference_pb2.CacheOptions.Mode
_DEFAULT_SAMPLING = SamplingParams()
_DEFAULT_STOP_CONDITIONS = StopConditions()


def tenant_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The caller's tenant: the one `x-tenant-id`, 1 to 128 printable ASCII characters, else "default"."""
    tenants = [value for key, value in metadata if key == TENANT_KEY]
    if not tenants:
        return DEFAULT_TENANT
    _require(len(tenants) == 1, TENANT_KEY, f"sent {len(tenants)} times; send it once")
    tenant = tenants[0]
    _require(
        isinstance(tenant, str)
        and 1 <= len(tenant) <= MAX_TENANT_LENGTH
        and tenant.isascii()
        and tenant.isprintable(),
        TENANT_KEY,
        f"must be 1 to {MAX_TENANT_LENGTH} printable ASCII characters",
    )
    return str(tenant)


def request_from_proto(message: inference_pb2.GenerateRequest, *, tenant: str, model: ServedModel) -> Request:
    """The request a message asks for.

    Text becomes token ids. An absent field takes its default, an empty request id a new one. top_k of
    -1, 0 and beyond the vocabulary all mean "keep all". max_tokens may reach beyond the context: the
    answer ends there, with FINISH_REASON_LENGTH.
    """
    _require(
        len(message.request_id) <= MAX_REQUEST_ID_LENGTH,
        "request_id",
        f"has {len(message.request_id)} characters; at most {MAX_REQUEST_ID_LENGTH} are taken",
    )
    # The cheap checks come first: a request that fails them is not worth tokenising.
    sampling = _sampling_params(message.sampling, model.vocabulary_size)
    stop_conditions = _stop_conditions(message.stop_conditions, model)
    num_choices = _given(message, "n", 1)
    _require(1 <= num_choices <= MAX_CHOICES, "n", f"{num_choices} is not in 1 to {MAX_CHOICES}")
    priority = _given(message, "priority", 0)
    _require(
        -MAX_PRIORITY <= priority <= MAX_PRIORITY,
        "priority",
        f"{priority} is not in {-MAX_PRIORITY} to {MAX_PRIORITY}",
    )
    _check_cache_options(message)
    token_ids = _prompt_token_ids(message, model)
    return Request(
        request_id=message.request_id or uuid.uuid4().hex,
        namespace=Namespace(model=model.build, tenant=tenant, salt=message.cache.salt, is_publisher=True),
        prompt_token_ids=tuple(token_ids),
        sampling=sampling,
        stop_conditions=stop_conditions,
        num_choices=num_choices,
        num_public_tokens=_num_public_tokens(message, token_ids, model),
        use_cache=message.cache.mode != _CacheMode.MODE_OFF,
        num_logprobs=_num_logprobs(message, "logprobs"),
        num_prompt_logprobs=_num_logprobs(message, "prompt_logprobs"),
        priority=priority,
    )


def token_ids_from_tokenize(message: inference_pb2.TokenizeRequest, *, model: ServedModel) -> list[int]:
    """The ids of a text (which may be empty) or a conversation, however many they are."""
    match message.WhichOneof("prompt"):
        case "text":
            return _encode_text(message.text, model)
        case "chat":
            return _encode_chat(message.chat, model)
    raise InvalidRequestError("prompt", "is missing; set text or chat")


def token_ids_from_detokenize(message: inference_pb2.DetokenizeRequest, *, model: ServedModel) -> list[int]:
    """The ids to turn into text; none is fine, and at most as many as the context takes."""
    num_ids = len(message.token_ids)
    _require(
        num_ids <= model.context_length,
        "token_ids",
        f"has {num_ids} ids; at most {model.context_length}, the context, are taken",
    )
    return _known_ids(message.token_ids, "token_ids", model.vocabulary_size)


def _require(holds: bool, field_name: str, description: str) -> None:
    if not holds:
        raise InvalidRequestError(field_name, description)


def _given(message: Any, name: str, default: Any) -> Any:
    """An optional field's value, or the default when it is absent."""
    return getattr(message, name) if message.HasField(name) else default


def _sampling_params(message: inference_pb2.SamplingParams, vocabulary_size: int) -> SamplingParams:
    def number(name: str, low: float, high: float, *, above_low: bool = False) -> float:
        value: float = _given(message, name, getattr(_DEFAULT_SAMPLING, name))
        bounds = f"({low:g}, {high:g}]" if above_low else f"{low:g} to {high:g}"
        # NaN fails every comparison, so it is refused too.
        is_inside = low < value <= high or (value == low and not above_low)
        _require(is_inside, f"sampling.{name}", f"{value:g} is not in {bounds}")
        return value

    top_k = _given(message, "top_k", _DEFAULT_SAMPLING.top_k)
    _require(top_k >= -1, "sampling.top_k", f"{top_k} is below -1; 0 and -1 keep all tokens")
    return SamplingParams(
        temperature=number("temperature", 0, MAX_TEMPERATURE),
        top_p=number("top_p", 0, 1, above_low=True),
        top_k=top_k if 0 < top_k < vocabulary_size else 0,
        min_p=number("min_p", 0, 1),
        repetition_penalty=number("repetition_penalty", MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
        presence_penalty=number("presence_penalty", -MAX_PENALTY, MAX_PENALTY),
        frequency_penalty=number("frequency_penalty", -MAX_PENALTY, MAX_PENALTY),
        logit_bias=_logit_bias(message.logit_bias, vocabulary_size),
        seed=_given(message, "seed", None),
    )


def _logit_bias(biases: Mapping[int, float], vocabulary_size: int) -> tuple[tuple[int, float], ...]:
    _require(
        len(biases) <= MAX_BIASES,
        "sampling.logit_bias",
        f"has {len(biases)} tokens; at most {MAX_BIASES} are taken",
    )
    for token_id, bias in biases.items():
        field_name = f"sampling.logit_bias[{token_id}]"
        _require(
            token_id < vocabulary_size,
            field_name,
            f"{token_id} is not a token id; they run from 0 to {vocabulary_size - 1}",
        )
        _require(
            -MAX_BIAS <= bias <= MAX_BIAS, field_name, f"{bias:g} is not in -{MAX_BIAS:g} to {MAX_BIAS:g}"
        )
    return tuple(sorted(biases.items()))


def _num_logprobs(message: inference_pb2.GenerateRequest, name: str) -> int | None:
    count: int | None = _given(message, name, None)
    if count is not None:
        _require(count <= MAX_TOP_LOGPROBS, name, f"{count} is not in 0 to {MAX_TOP_LOGPROBS}")
    return count


def _stop_conditions(message: inference_pb2.StopConditions, model: ServedModel) -> StopConditions:
    max_tokens = _given(message, "max_tokens", _DEFAULT_STOP_CONDITIONS.max_tokens)
    min_tokens = _given(message, "min_tokens", _DEFAULT_STOP_CONDITIONS.min_tokens)
    ignore_eos = _given(message, "ignore_eos", _DEFAULT_STOP_CONDITIONS.ignore_eos)
    _require(max_tokens >= 1, "stop_conditions.max_tokens", f"{max_tokens} is not at least 1")
    _require(
        min_tokens <= max_tokens,
        "stop_conditions.min_tokens",
        f"{min_tokens} is more than max_tokens, which is {max_tokens}",
    )
    _require(
        len(message.stop_token_ids) <= MAX_STOP_TOKEN_IDS,
        "stop_conditions.stop_token_ids",
        f"has {len(message.stop_token_ids)} ids; at most {MAX_STOP_TOKEN_IDS} are taken",
    )
    stop_token_ids = _known_ids(
        message.stop_token_ids, "stop_conditions.stop_token_ids", model.vocabulary_size
    )
    ending_ids = {*stop_token_ids, *(() if ignore_eos else model.eos_token_ids)}
    _require(
        min_tokens == 0 or len(ending_ids) < model.vocabulary_size,
        "stop_conditions.min_tokens",
        "needs a token that does not end the answer, and every token of this model does",
    )
    _require(
        len(message.stop) <= MAX_STOP_TEXTS,
        "stop_conditions.stop",
        f"has {len(message.stop)} texts; at most {MAX_STOP_TEXTS} are taken",
    )
    for position, text in enumerate(message.stop):
        _require(
            1 <= len(text) <= MAX_STOP_LENGTH,
            f"stop_conditions.stop[{position}]",
            f"has {len(text)} characters; 1 to {MAX_STOP_LENGTH} are taken",
        )
    return StopConditions(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=tuple(message.stop),
        stop_token_ids=tuple(stop_token_ids),
        include_stop=_given(message, "include_stop", _DEFAULT_STOP_CONDITIONS.include_stop),
        ignore_eos=ignore_eos,
    )


def _check_cache_options(message: inference_pb2.GenerateRequest) -> None:
    options = message.cache
    _require(options.mode in _CacheMode.values(), "cache.mode", f"{options.mode} is not a known mode")
    num_salt_bytes = len(options.salt.encode())
    _require(
        num_salt_bytes <= MAX_SALT_BYTES,
        "cache.salt",
        f"has {num_salt_bytes} bytes; at most {MAX_SALT_BYTES} are taken",
    )
    if options.WhichOneof("public_prefix") == "public_messages":
        _require(
            message.WhichOneof("prompt") == "chat",
            "cache.public_messages",
            "needs a chat prompt; use cache.public_tokens with text or token_ids",
        )
        num_messages = len(message.chat.messages)
        _require(
            options.public_messages <= num_messages,
            "cache.public_messages",
            f"{options.public_messages} of {num_messages} messages cannot be public",
        )


def _num_public_tokens(
    message: inference_pb2.GenerateRequest, token_ids: Sequence[int], model: ServedModel
) -> int:
    options = message.cache
    match options.WhichOneof("public_prefix"):
        case "public_tokens":
            _require(
                options.public_tokens <= len(token_ids),
                "cache.public_tokens",
                f"{options.public_tokens} of {len(token_ids)} prompt tokens cannot be public",
            )
            return options.public_tokens
        case "public_messages" if options.public_messages:
            public_turns = message.chat.messages[: options.public_messages]
            return _common_prefix_length(
                _encode_turns(public_turns, model, add_generation_prompt=False), token_ids
            )
    return 0


def _prompt_token_ids(message: inference_pb2.GenerateRequest, model: ServedModel) -> list[int]:
    field_name = message.WhichOneof("prompt")
    match field_name:
        case "text":
            token_ids = _encode_text(message.text, model)
        case "token_ids":
            _check_prompt_length(len(message.token_ids.ids), field_name, model)
            token_ids = _known_ids(message.token_ids.ids, "token_ids.ids", model.vocabulary_size)
        case "chat":
            token_ids = _encode_chat(message.chat, model)
        case _:
            raise InvalidRequestError("prompt", "is missing; set text, token_ids or chat")
    _check_prompt_length(len(token_ids), field_name, model)
    return token_ids


def _check_prompt_length(num_tokens: int, field_name: str, model: ServedModel) -> None:
    _require(num_tokens > 0, field_name, "has no tokens; a prompt needs at least one")
    _require(
        num_tokens < model.context_length,  # one place at least is for the answer
        field_name,
        f"has {num_tokens} tokens; the context of {model.context_length} takes a prompt "
        f"of at most {model.context_length - 1}",
    )


def _known_ids(token_ids: Sequence[int], field_name: str, vocabulary_size: int) -> list[int]:
    if token_ids and max(token_ids) >= vocabulary_size:
        position = next(i for i, token_id in enumerate(token_ids) if token_id >= vocabulary_size)
        raise InvalidRequestError(
            f"{field_name}[{position}]",
            f"{token_ids[position]} is not a token id; they run from 0 to {vocabulary_size - 1}",
        )
    return list(token_ids)


def _encode_text(text: str, model: ServedModel) -> list[int]:
    _check_text_length(len(text), "text", model)
    return model.tokenizer.encode(text, add_special=True)


def _encode_chat(message: inference_pb2.ChatMessages, model: ServedModel) -> list[int]:
    turns = message.messages
    _require(
        1 <= len(turns) <= model.context_length,  # no turn renders to less than a token
        "chat.messages",
        f"has {len(turns)} messages; with this context 1 to {model.context_length} are taken",
    )
    for position, turn in enumerate(turns):
        field_name = f"chat.messages[{position}].role"
        _require(turn.role in ROLES, field_name, f"is not one of {', '.join(ROLES)}")
    _check_text_length(sum(len(turn.content) for turn in turns), "chat", model)
    return _encode_turns(turns, model, add_generation_prompt=True)


def _encode_turns(
    turns: Sequence[inference_pb2.ChatMessage], model: ServedModel, *, add_generation_prompt: bool
) -> list[int]:
    if model.chat_template is None:
        raise InvalidRequestError("chat", "this model has no chat template; send text or token_ids")
    messages = [{"role": turn.role, "content": turn.content} for turn in turns]
    text = model.chat_template.render(messages, add_generation_prompt=add_generation_prompt)
    return model.tokenizer.encode(text, add_special=False)  # the template writes what the model wants


def _check_text_length(num_characters: int, field_name: str, model: ServedModel) -> None:
    most = MAX_CHARACTERS_PER_TOKEN * model.context_length
    _require(
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
