"""Answers: from proto messages to immutable Python values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar

from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_client.errors import PrefixCacheClientError

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStats:
    """Where the pool's blocks are. `free + idle + live == total`."""

    total: int
    free: int
    idle: int
    """Cached blocks that no request holds."""
    live: int
    """Blocks that at least one request holds."""
    live_unshared: int
    """Blocks that the live requests would hold if none were shared."""
    peak_live: int
    peak_live_unshared: int
    evicted: int
    copied: int
    block_bytes: int
    block_size: int
    used_slots: int
    """Slots of the live blocks without those behind a request's last token."""
    peak_used_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStats:
    """Tokens since the worker started. `cached + computed == prompt`."""

    prompt: int
    cached: int
    computed: int
    generated: int
    kv_rows_read: int
    """KV rows read by attention, a shared run counted once per step."""
    kv_rows_unshared: int
    """KV rows that would have been read without sharing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """Requests now, and since the worker started."""

    waiting: int
    running: int
    finished: int
    cancelled: int
    preemptions: int
    steps: int
    failed: int
    """Ended by an error of the worker."""
    peak_running: int
    promoted: int
    """Overtaken so often that they went before everything that came later; each choice counts."""
    followed: int
    """Times that a prompt waited for another one that began the same, and was not computed twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What the cache holds and what it saved."""

    blocks: BlockStats
    tokens: TokenStats
    requests: RequestStats


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """One node of the radix tree: a run of tokens and their blocks."""

    id: int
    parent_id: int
    """0 for a child of the root."""
    public: bool
    """True when all tenants may share it."""
    tenant: str
    """The owner of a private node."""
    num_tokens: int
    num_blocks: int
    num_live_blocks: int
    num_readers: int
    """The most live requests that hold one block of the run."""
    preview: str
    """The beginning of the run as text, only for public nodes and the caller's own."""
    last_used: int
    """The cache's logical clock when the node was last used."""


def event_from_proto(response: inference_pb2.GenerateResponse) -> Event:
    """One event of a stream."""
    match response.WhichOneof("event"):
        case "completion":
            completion = response.completion
            return Completion(
                request_id=completion.request_id,
                usage=_from_fields(Usage, completion.usage),
                timing=_from_fields(Timing, completion.timing),
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
    return _from_fields(ModelInfo, response, eos_token_ids=tuple(response.eos_token_ids))


def stats_from_proto(response: cache_pb2.GetStatsResponse) -> Stats:
    """The counts."""
    return Stats(
        blocks=_from_fields(BlockStats, response.blocks),
        tokens=_from_fields(TokenStats, response.tokens),
        requests=_from_fields(RequestStats, response.requests),
    )


def tree_from_proto(response: cache_pb2.DumpTreeResponse) -> tuple[TreeNode, ...]:
    """The tree's nodes, parents before children."""
    return tuple(_from_fields(TreeNode, node) for node in response.nodes)


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


def _from_fields(cls: type[T], message: Any, **values: Any) -> T:
    """An instance of the dataclass `cls` whose fields are named like the message's; `values` go first."""
    names = (field.name for field in fields(cls))  # type: ignore[arg-type]  # always a dataclass
    return cls(**{name: values[name] if name in values else getattr(message, name) for name in names})
