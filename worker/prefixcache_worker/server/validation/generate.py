"""Every bound on a GenerateRequest, and on its end by Abort: messages become checked values here or nowhere.

All functions raise InvalidRequestError, naming the field by its path in the message, and nothing else.
They may take as long as tokenising and compiling a constraint take; nothing in them waits.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from math import inf

from prefixcache import unpack_tokens
from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_worker.constraint.constraint import Constraint
from prefixcache_worker.engine.prefix_book import PrefixOrder
from prefixcache_worker.engine.request import Request, SamplingParams, StopConditions
from prefixcache_worker.errors import InvalidRequestError
from prefixcache_worker.server.access.caller import Caller
from prefixcache_worker.server.access.tenant_limits import TenantLimits
from prefixcache_worker.server.served_model import ServedModel
from prefixcache_worker.server.validation.bounds import (
    checked_number,
    checked_request_id,
    checked_salt,
    given,
    known_ids,
    require,
)
from prefixcache_worker.server.validation.prompts import (
    continued_token_ids,
    num_public_tokens,
    prompt_token_ids,
)

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

_CacheMode = inference_pb2.CacheOptions.Mode
_DEFAULT_SAMPLING = SamplingParams()
_DEFAULT_STOP_CONDITIONS = StopConditions()


def request_from_proto(
    message: inference_pb2.GenerateRequest,
    *,
    caller: Caller,
    model: ServedModel,
    prefix: PrefixOrder | None = None,
) -> Request:
    """The request a message asks for. `prefix` is what its `prefix_id` names.

    Text becomes token ids. An absent field takes its default, an empty request id a new one. top_k of
    -1, 0 and beyond the vocabulary all mean "keep all". max_tokens may reach beyond the context: the
    answer ends there, with FINISH_REASON_LENGTH.
    """
    request_id = checked_request_id(message.request_id)
    # The cheap checks come first: a request that fails them is not worth tokenising.
    sampling = _sampling_params(message.sampling, model.vocabulary_size)
    stop_conditions = _stop_conditions(message.stop_conditions, model)
    num_choices = given(message, "n", 1)
    require(1 <= num_choices <= MAX_CHOICES, "n", f"{num_choices} is not in 1 to {MAX_CHOICES}")
    priority = _priority(message, caller.limits)
    _check_cache_priority(message.cache, caller.limits)
    check_cache_options(message)
    constraint = _constraint(message, model)
    assert (prefix is not None) == bool(message.prefix_id), "whoever takes a prefix_id finds its prefix"
    namespace = caller.namespace(model.build, salt=message.cache.salt)
    if prefix is None:
        token_ids = prompt_token_ids(message, model)
        num_public = num_public_tokens(message, token_ids, model)
    else:
        token_ids = continued_token_ids(message, unpack_tokens(prefix.tokens), model)
        namespace = caller.namespace(model.build, salt=_salt_behind(message, prefix))
        # Who may not publish reads what is public all the same.
        num_public = prefix.num_public_tokens if namespace.is_publisher else 0
    return Request(
        request_id=request_id or uuid.uuid4().hex,
        namespace=namespace,
        prompt_token_ids=tuple(token_ids),
        sampling=sampling,
        stop_conditions=stop_conditions,
        num_choices=num_choices,
        num_public_tokens=num_public,
        use_cache=message.cache.mode != _CacheMode.MODE_OFF,
        num_logprobs=_num_logprobs(message, "logprobs"),
        num_prompt_logprobs=_num_logprobs(message, "prompt_logprobs"),
        priority=priority,
        constraint=constraint,
        cache_priority=message.cache.priority,
        cache_priority_seconds=given(message.cache, "priority_seconds", inf),
    )


def request_id_to_abort(message: inference_pb2.AbortRequest) -> str:
    """The id of a request, which is not empty."""
    require(message.request_id != "", "request_id", "is empty; name the request to end")
    return checked_request_id(message.request_id)


def _constraint(message: inference_pb2.GenerateRequest, model: ServedModel) -> Constraint | None:
    if not message.HasField("constraint"):
        return None
    kind = message.constraint.WhichOneof("rule")
    if kind is None:
        raise InvalidRequestError("constraint", "has no rule; set json_schema, regex or grammar")
    text = getattr(message.constraint, kind)
    return model.constraints.compile(kind, text, field_name=f"constraint.{kind}")


def _sampling_params(message: inference_pb2.SamplingParams, vocabulary_size: int) -> SamplingParams:
    def number(name: str, low: float, high: float, *, above_low: bool = False) -> float:
        value: float = given(message, name, getattr(_DEFAULT_SAMPLING, name))
        return checked_number(value, f"sampling.{name}", low, high, above_low=above_low)

    top_k = given(message, "top_k", _DEFAULT_SAMPLING.top_k)
    require(top_k >= -1, "sampling.top_k", f"{top_k} is below -1; 0 and -1 keep all tokens")
    return SamplingParams(
        temperature=number("temperature", 0, MAX_TEMPERATURE),
        top_p=number("top_p", 0, 1, above_low=True),
        top_k=top_k if 0 < top_k < vocabulary_size else 0,
        min_p=number("min_p", 0, 1),
        repetition_penalty=number("repetition_penalty", MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
        presence_penalty=number("presence_penalty", -MAX_PENALTY, MAX_PENALTY),
        frequency_penalty=number("frequency_penalty", -MAX_PENALTY, MAX_PENALTY),
        logit_bias=_logit_bias(message.logit_bias, vocabulary_size),
        seed=given(message, "seed", None),
    )


def _logit_bias(biases: Mapping[int, float], vocabulary_size: int) -> tuple[tuple[int, float], ...]:
    require(
        len(biases) <= MAX_BIASES,
        "sampling.logit_bias",
        f"has {len(biases)} tokens; at most {MAX_BIASES} are taken",
    )
    for token_id, bias in biases.items():
        field_name = f"sampling.logit_bias[{token_id}]"
        require(
            token_id < vocabulary_size,
            field_name,
            f"{token_id} is not a token id; they run from 0 to {vocabulary_size - 1}",
        )
        require(
            -MAX_BIAS <= bias <= MAX_BIAS, field_name, f"{bias:g} is not in -{MAX_BIAS:g} to {MAX_BIAS:g}"
        )
    return tuple(sorted(biases.items()))


def _num_logprobs(message: inference_pb2.GenerateRequest, name: str) -> int | None:
    count: int | None = given(message, name, None)
    if count is not None:
        require(count <= MAX_TOP_LOGPROBS, name, f"{count} is not in 0 to {MAX_TOP_LOGPROBS}")
    return count


def _stop_conditions(message: inference_pb2.StopConditions, model: ServedModel) -> StopConditions:
    max_tokens = given(message, "max_tokens", _DEFAULT_STOP_CONDITIONS.max_tokens)
    min_tokens = given(message, "min_tokens", _DEFAULT_STOP_CONDITIONS.min_tokens)
    ignore_eos = given(message, "ignore_eos", _DEFAULT_STOP_CONDITIONS.ignore_eos)
    require(max_tokens >= 1, "stop_conditions.max_tokens", f"{max_tokens} is not at least 1")
    require(
        min_tokens <= max_tokens,
        "stop_conditions.min_tokens",
        f"{min_tokens} is more than max_tokens, which is {max_tokens}",
    )
    require(
        len(message.stop_token_ids) <= MAX_STOP_TOKEN_IDS,
        "stop_conditions.stop_token_ids",
        f"has {len(message.stop_token_ids)} ids; at most {MAX_STOP_TOKEN_IDS} are taken",
    )
    stop_token_ids = known_ids(
        message.stop_token_ids, "stop_conditions.stop_token_ids", model.vocabulary_size
    )
    ending_ids = {*stop_token_ids, *(() if ignore_eos else model.eos_token_ids)}
    require(
        min_tokens == 0 or len(ending_ids) < model.vocabulary_size,
        "stop_conditions.min_tokens",
        "needs a token that does not end the answer, and every token of this model does",
    )
    require(
        len(message.stop) <= MAX_STOP_TEXTS,
        "stop_conditions.stop",
        f"has {len(message.stop)} texts; at most {MAX_STOP_TEXTS} are taken",
    )
    for position, text in enumerate(message.stop):
        require(
            1 <= len(text) <= MAX_STOP_LENGTH,
            f"stop_conditions.stop[{position}]",
            f"has {len(text)} characters; 1 to {MAX_STOP_LENGTH} are taken",
        )
    return StopConditions(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=tuple(message.stop),
        stop_token_ids=tuple(stop_token_ids),
        include_stop=given(message, "include_stop", _DEFAULT_STOP_CONDITIONS.include_stop),
        ignore_eos=ignore_eos,
    )


def _priority(message: inference_pb2.GenerateRequest, limits: TenantLimits) -> int:
    """Within what anybody may ask for, and what the tenant may."""
    most = MAX_PRIORITY if limits.max_priority is None else min(MAX_PRIORITY, limits.max_priority)
    priority: int = given(message, "priority", min(0, most))
    require(-MAX_PRIORITY <= priority <= most, "priority", f"{priority} is not in {-MAX_PRIORITY} to {most}")
    return priority


def _check_cache_priority(options: inference_pb2.CacheOptions, limits: TenantLimits) -> None:
    most = limits.max_cache_priority
    require(
        most is None or options.priority <= most,
        "cache.priority",
        f"{options.priority} is more than {most}, the most that this tenant may ask for",
    )


def check_cache_options(message: inference_pb2.GenerateRequest | cache_pb2.ExplainRequest) -> None:
    """What can be said of `message.cache` before the prompt is tokenised."""
    options = message.cache
    require(options.mode in _CacheMode.values(), "cache.mode", f"{options.mode} is not a known mode")
    checked_salt(options.salt, "cache.salt")
    require(
        options.priority <= MAX_PRIORITY,
        "cache.priority",
        f"{options.priority} is not in 0 to {MAX_PRIORITY}",
    )
    seconds = given(options, "priority_seconds", inf)
    require(seconds > 0, "cache.priority_seconds", f"{seconds:g} is not above 0")
    if options.WhichOneof("public_prefix") == "public_messages":
        require(
            message.WhichOneof("prompt") == "chat",
            "cache.public_messages",
            "needs a chat prompt; use cache.public_tokens with text or token_ids",
        )
        num_messages = len(message.chat.messages)
        require(
            options.public_messages <= num_messages,
            "cache.public_messages",
            f"{options.public_messages} of {num_messages} messages cannot be public",
        )


def _salt_behind(message: inference_pb2.GenerateRequest, prefix: PrefixOrder) -> str:
    """The salt of a prompt behind a prefix: the prefix's own. So is what is public of it."""
    salt = prefix.namespace.salt
    require(
        message.cache.salt in ("", salt),
        "cache.salt",
        "is not that of the prefix; leave it out with prefix_id",
    )
    require(
        message.cache.WhichOneof("public_prefix") is None,
        f"cache.{message.cache.WhichOneof('public_prefix')}",
        "cannot be set with prefix_id; what is public of a prefix was said when it was made",
    )
    return salt
