"""What a client asked for and what it gets back. All values are immutable."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from prefixcache import Namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen. Validated where the request enters; see `server/validation.py`."""

    temperature: float = 1.0
    """0 takes the likeliest token; the other fields then do nothing."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this; in (0, 1]."""
    top_k: int = 0
    """Keep this many likeliest tokens; 0 keeps all."""
    seed: int | None = None
    """Choice i of a request draws from a stream of its own, derived from (seed, i)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopConditions:
    """When a choice ends, besides the context length and the pool."""

    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and how to answer it. Nothing behind the tokenizer changes it."""

    request_id: str
    namespace: Namespace
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_conditions: StopConditions = field(default_factory=StopConditions)
    num_choices: int = 1
    num_public_tokens: int = 0
    """So many tokens at the prompt's beginning may be shared with every tenant (whole blocks only)."""
    use_cache: bool = True
    """False: compute everything, leave nothing in the tree."""


class FinishReason(Enum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Delta:
    """New output of one choice. The last one of a choice has a `finish_reason`."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request. `cached_tokens + computed_tokens == prompt_tokens`, always."""

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds on the engine's monotonic clock, counted from `submit`."""

    queue_seconds: float
    first_token_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The one event that ends a successful answer."""

    request_id: str
    usage: Usage
    timing: Timing


@dataclass(frozen=True, slots=True)
class Failure:
    """The one event that ends an answer that could not be finished."""

    error: Exception


Event = Delta | Completion | Failure
"""What the engine says of a request: deltas, then exactly one completion or failure."""
