"""Answers: from proto messages to immutable Python values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from prefixcache.v1 import inference_pb2
from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.fields import from_fields

T = TypeVar("T")


class FinishReason(StrEnum):
    """Why a choice ended."""

    STOP = "stop"
    """The model ended the text, or a stop text was met."""
    LENGTH = "length"
    """max_tokens, the context length or the KV pool was reached."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a token was by the model's own logits, before sampling changed them."""

    logprob: float
    top_token_ids: tuple[int, ...] = ()
    """The likeliest tokens in its place, likeliest first."""
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """How likely the next tokens of the prompt are; None stands for the first, which follows nothing."""

    logprobs: tuple[TokenLogprobs | None, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """New output of one choice. The last one of a choice has a `finish_reason`."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop text or stop token id that ended the choice; None when the model ended it."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token, if they were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request. `cached_tokens + computed_tokens == prompt_tokens`, always."""

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    completion_tokens: int
    is_approximate: bool = False
    """Whether the worker left out KV rows that its model would have read."""
    written_tokens: int = 0
    """Tokens whose KV the request left in the cache and that were not there before."""
    block_seconds: float = 0.0
    """KV blocks that the request held, times the seconds it held them."""
    restored_tokens: int = 0
    """Of `cached_tokens`, those whose KV came back from a larger, slower tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds since the request arrived, by the worker's monotonic clock."""

    queue_seconds: float
    """Until the request first ran."""
    first_token_seconds: float
    """Until the first token was there."""
    total_seconds: float
    """Until the last token was there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The last event of a successful answer."""

    request_id: str
    usage: Usage
    timing: Timing


Event = PromptLogprobs | Delta | Completion
"""What a stream yields: the prompt's log-probabilities if asked for, deltas, then exactly one completion."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole answer."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    """The stop text or stop token id that ended it; None when the model ended it."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token, if they were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """All answers to one prompt, in the order of their index, and what they cost."""

    request_id: str
    choices: tuple[Choice, ...]
    usage: Usage
    timing: Timing
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    """One for each token of the prompt, if they were asked for; None for the first, which follows nothing."""

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model, its shape and the worker's limits."""

    name: str
    build: str
    """Changes whenever cached KV of another build would be wrong."""
    architecture: str
    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    vocabulary_size: int
    context_length: int
    """Most tokens of prompt and answer together."""
    block_size: int
    """Tokens of one block."""
    num_blocks: int
    block_bytes: int
    device: str
    kv_dtype: str
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool


def event_from_proto(response: inference_pb2.GenerateResponse) -> Event:
    """One event of a stream."""
    match response.WhichOneof("event"):
        case "completion":
            completion = response.completion
            return Completion(
                request_id=completion.request_id,
                usage=from_fields(Usage, completion.usage),
                timing=from_fields(Timing, completion.timing),
            )
        case "prompt_logprobs":
            scores = response.prompt_logprobs.logprobs
            return PromptLogprobs(
                tuple(_logprobs(score) if score.HasField("logprob") else None for score in scores)
            )
    delta = response.delta
    stop_field = delta.WhichOneof("stop_reason")
    return Delta(
        delta.index,
        delta.text,
        tuple(delta.token_ids),
        _FINISH_REASON_BY_PROTO.get(delta.finish_reason),
        getattr(delta, stop_field) if stop_field is not None else None,
        tuple(map(_logprobs, delta.logprobs)),
    )


def generation_from_events(events: Iterable[Event]) -> Generation:
    """The whole answer. Raises PrefixCacheClientError when a choice or the completion is missing."""
    prompt_logprobs: list[TokenLogprobs | None] = []
    deltas: dict[int, list[Delta]] = {}
    for event in events:
        match event:
            case PromptLogprobs():
                prompt_logprobs += event.logprobs
            case Delta():
                deltas.setdefault(event.index, []).append(event)
            case Completion():
                return Generation(
                    request_id=event.request_id,
                    choices=tuple(_choice(index, deltas[index]) for index in sorted(deltas)),
                    usage=event.usage,
                    timing=event.timing,
                    prompt_logprobs=tuple(prompt_logprobs),
                )
    raise PrefixCacheClientError("the answer ended without its completion; the worker or a proxy cut it off")


def model_info_from_proto(response: inference_pb2.GetModelInfoResponse) -> ModelInfo:
    """The model and the worker's limits."""
    return from_fields(ModelInfo, response, eos_token_ids=tuple(response.eos_token_ids))


_FINISH_REASON_BY_PROTO = {
    inference_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    inference_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}


def _choice(index: int, deltas: list[Delta]) -> Choice:
    finish_reason = deltas[-1].finish_reason
    if finish_reason is None:
        raise PrefixCacheClientError(f"choice {index} ended without a finish reason")
    return Choice(
        index,
        "".join(delta.text for delta in deltas),
        tuple(token_id for delta in deltas for token_id in delta.token_ids),
        finish_reason,
        deltas[-1].stop_reason,
        tuple(score for delta in deltas for score in delta.logprobs),
    )


def _logprobs(score: inference_pb2.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(score.logprob, tuple(score.top_token_ids), tuple(score.top_logprobs))
