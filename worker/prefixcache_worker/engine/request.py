"""What a client asked for and what it gets back. All values are immutable."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import inf

from prefixcache import Namespace
from prefixcache_worker.constraint.constraint import Constraint
from prefixcache_worker.engine.prefix_book import Prefix, PrefixOrder

MIN_TEMPERATURE = 1e-5
"""Anything colder is greedy: dividing by less would make nothing of differences, and then overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen. Validated where the request enters; see `server/validation.py`.

    What the fields do, and in which order, is said at `logit_adjustments.py` and `truncation.py`.
    """

    temperature: float = 1.0
    """Logits are divided by this; 0 takes the likeliest token."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this; in (0, 1]."""
    top_k: int = 0
    """Keep this many likeliest tokens; 0 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least so many times as likely as the likeliest; in [0, 1]."""
    repetition_penalty: float = 1.0
    """Above 1 makes tokens of the prompt and of the answer less likely; above 0."""
    presence_penalty: float = 0.0
    """Taken from the logit of every token that the answer already has."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit once for each time the answer already has it."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids, each at most once, and what is added to their logits."""
    seed: int | None = None
    """Choice i of a request has random numbers of its own, derived from (seed, i)."""

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken, and nothing is drawn."""
        return self.temperature < MIN_TEMPERATURE

    @property
    def truncates(self) -> bool:
        """Whether some tokens can never be drawn, however the logits are."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    @property
    def has_penalties(self) -> bool:
        """Whether it matters which tokens there were before."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopConditions:
    """When a choice ends, besides the context length and the pool."""

    max_tokens: int = 256
    min_tokens: int = 0
    """Before so many tokens only the context length and the pool end the choice: tokens that would end it are
    not chosen, and a stop text that is complete is text."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these."""
    stop_token_ids: tuple[int, ...] = ()
    """The choice ends with the first of these tokens, which has no text."""
    include_stop: bool = False
    """Let the text end with what stopped it, a stop text or a token's text."""
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
    num_logprobs: int | None = None
    """Tell the log-probability of each output token, and so many of the likeliest beside it; None: no."""
    num_prompt_logprobs: int | None = None
    """The same for prompt tokens. Their rows are all computed, cached or not: the cache has no logits."""
    priority: int = 0
    """Higher ones are admitted first, and lower ones give way to them when room runs out."""
    constraint: Constraint | None = None
    """What each choice must look like; None: anything."""
    cache_priority: int = 0
    """What it uses and leaves in the cache is evicted after everything of a lower one."""
    cache_priority_seconds: float = inf
    """How long that holds after it was admitted."""
    kept_as: PrefixOrder | None = None
    """The prompt is a prefix that is to be kept as soon as it is computed; there is no answer then."""

    @property
    def bypasses_cache(self) -> bool:
        """Whether it looks for nothing in the cache, so that it neither hits nor misses."""
        return not self.use_cache or self.num_prompt_logprobs is not None


class FinishReason(Enum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a token was by the model's own logits, and which were the likeliest in its place."""

    logprob: float
    top_token_ids: tuple[int, ...] = ()
    """Likeliest first; the token itself is among them only if it is as likely as they are."""
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """New output of one choice. The last one of a choice has a `finish_reason`."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop text or stop token id that was met; None when it was the model's end-of-text token."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token, if the request asked for them."""


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """The next tokens of the prompt, in order; None stands for the first, which follows nothing.

    They come before the first delta.
    """

    logprobs: tuple[TokenLogprobs | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request. `cached_tokens + computed_tokens == prompt_tokens`, always."""

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    completion_tokens: int
    restored_tokens: int = 0
    """Of `cached_tokens`, those whose rows came from a tier."""
    is_approximate: bool = False
    """Whether rows that the model would have read were left out, as the worker's settings allow."""
    written_tokens: int = 0
    """Tokens that the cache did not have before; again, what was evicted while the request waited."""
    block_seconds: float = 0.0
    """Blocks that it held, times the seconds; one that its choices share counts once."""


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
    prefix: Prefix | None = None
    """What is kept now, if the request was to keep its prompt."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The one event that ends an answer that could not be finished."""

    error: Exception


AnswerEvent = PromptLogprobs | Delta | Completion
"""What an answer is made of, in this order, with exactly one completion."""

Event = AnswerEvent | Failure
"""What the engine says of a request: its answer, or what there is of it and then one failure."""
