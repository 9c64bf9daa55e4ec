"""The decoding state of one choice of a request."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any

import numpy as np
import torch

from prefixcache import Match, TokenIds, pack_tokens
from prefixcache.token_chunks import TOKEN_BYTES
from prefixcache_worker.engine.assembler import Assembler
from prefixcache_worker.engine.cache_scheme import CacheScheme, SequenceHandle
from prefixcache_worker.engine.logprobs import token_logprobs
from prefixcache_worker.engine.request import Delta, FinishReason, PromptLogprobs, Request, TokenLogprobs
from prefixcache_worker.engine.sampling_state import SamplingState
from prefixcache_worker.errors import InvalidRequestError


class Sequence:
    """Tokens of one choice, how far their KV is written, and what is said of them.

    Invariants between two steps, proved by `check`: `num_computed_tokens < len(token_ids)`, so that there
    is always something to compute; a handle has room for every computed token, and without one, while
    it waits, nothing counts as computed. What was said of a token is never said again, whatever is
    computed again.
    """

    def __init__(
        self,
        key: Hashable,
        request: Request,
        index: int,
        assembler: Assembler,
        max_total_tokens: int,
        eos_token_ids: Collection[int] = (),
    ) -> None:
        self.key = key
        """The engine's key of the request."""
        self.request = request
        self.index = index
        self.token_ids = list(request.prompt_token_ids)
        self.num_computed_tokens = 0
        self.num_exact_tokens: int | None = None
        """So many rows at the beginning are the model's own; None while all are. The others are shared
        with nobody."""
        self.num_written_tokens = 0
        """Tokens that it has published and that the cache did not have."""
        self.handle: SequenceHandle | None = None
        self.assembler = assembler
        self.max_total_tokens = max_total_tokens
        stop = request.stop_conditions
        self._ending_ids = frozenset((*stop.stop_token_ids, *(() if stop.ignore_eos else eos_token_ids)))
        rule = request.constraint
        self.sampling = SamplingState(
            request.sampling,
            index=index,
            prompt_token_ids=request.prompt_token_ids,
            ending_ids=self._ending_ids,
            min_tokens=stop.min_tokens,
            constraint=None if rule is None else rule.start(ignore_eos=stop.ignore_eos),
        )
        # The first choice tells them, for all.
        wants_prompt = index == 0 and request.num_prompt_logprobs is not None
        self._num_scored_tokens = 0 if wants_prompt else self.num_prompt_tokens
        self.tenant = request.namespace.tenant
        self.priority = request.priority
        self.arrival = 0
        """Its number among the requests, the same for all choices of one. The scheduler counts."""
        self.num_overtakes = 0
        """Admissions of later requests before this one's prompt was computed."""
        self.is_overdue = False
        """Overtaken so often that nothing that came later goes before it any more, nor takes its blocks."""
        self.is_paused = False
        """Its reader has more to read than it may leave: it gets no tokens, and gives way to whoever does."""
        self.is_resumed = False
        """Whether it has run before, and had to give way."""
        self.last_step = 0
        """The step in which it last ran."""
        self.last_token: float | None = None
        """When its last token came, by the engine's clock."""
        self.packed_prompt = pack_tokens(request.prompt_token_ids)
        """The prompt as bytes, whose beginnings are compared at memory speed."""
        self._prompt = np.frombuffer(self.packed_prompt, dtype="<u4")

    @property
    def running_handle(self) -> SequenceHandle:
        """The handle of a sequence that runs."""
        assert self.handle is not None, "a waiting sequence holds no blocks"
        return self.handle

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens whose KV is missing: 1 while decoding, more while prefilling."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_publishable_tokens(self) -> int:
        """Rows at the beginning that others may use."""
        if self.num_exact_tokens is None:
            return self.num_computed_tokens
        return min(self.num_computed_tokens, self.num_exact_tokens)

    @property
    def is_prefilling(self) -> bool:
        return self.num_computed_tokens < self.num_prompt_tokens

    @property
    def num_choices_to_fork(self) -> int:
        """Choices that will split off when the prompt is computed."""
        return self.request.num_choices - 1 if self.index == 0 and self.num_output_tokens == 0 else 0

    @property
    def first_logit_position(self) -> int:
        """Logits are wanted from here on: of the last token, and before it where a prompt is to be scored."""
        if self._num_scored_tokens < self.num_prompt_tokens:
            return max(0, self._num_scored_tokens - 1)
        return len(self.token_ids) - 1

    @property
    def max_cached_tokens(self) -> int | None:
        """So many rows at most can come from the cache, which has no logits; None: any number."""
        return self.first_logit_position if self._num_scored_tokens < self.num_prompt_tokens else None

    def score_prompt(
        self,
        logits: torch.Tensor,  # [num_rows, vocabulary_size] float32, from `first_logit_position` on
    ) -> PromptLogprobs | None:
        """What is to be said of the prompt tokens that follow these rows; None if nothing is."""
        if self._num_scored_tokens == self.num_prompt_tokens:
            return None
        start = self.first_logit_position + 1
        token_ids = self.request.prompt_token_ids[start : start + len(logits)]
        scores: list[TokenLogprobs | None] = [None] if self._num_scored_tokens == 0 else []
        scores += token_logprobs(logits, token_ids, [self.request.num_prompt_logprobs] * len(token_ids))
        self._num_scored_tokens += len(scores)
        return PromptLogprobs(tuple(scores)) if scores else None

    def take(self, token_id: int, score: TokenLogprobs | None = None) -> Delta:
        """Append a token; what it adds to the answer, and whether it ends it. O(bytes of the token)."""
        stop = self.request.stop_conditions
        self.token_ids.append(token_id)
        self.sampling.append(token_id)
        ends = token_id in self._ending_ids
        if ends and not stop.include_stop:
            text, stop_text = "", None
        else:
            may_stop = self.num_output_tokens >= stop.min_tokens
            text, stop_text = self.assembler.push(token_id, may_stop=may_stop)
        is_full = len(self.token_ids) >= self.max_total_tokens
        constraint = self.sampling.constraint
        ends = ends or (constraint is not None and constraint.is_complete)
        if stop_text is None and (ends or is_full):
            rest, stop_text = self.assembler.finish()
            text += rest
        reason = None
        if ends or stop_text is not None:
            reason = FinishReason.STOP
        elif is_full:
            reason = FinishReason.LENGTH
        stop_reason: str | int | None = stop_text
        if stop_text is None and token_id in stop.stop_token_ids:
            stop_reason = token_id
        logprobs = () if score is None else (score,)
        return Delta(self.index, text, (token_id,), reason, stop_reason, logprobs)

    @property
    def constraint_error(self) -> InvalidRequestError | None:
        """Why no token can follow, although the answer has not ended; None if one can."""
        constraint, state = self.request.constraint, self.sampling.constraint
        if constraint is None or state is None or not state.error:
            return None
        return InvalidRequestError(
            constraint.field_name,
            f"cannot be followed beyond token {self.num_output_tokens} of the answer: {state.error}",
        )

    @property
    def cache_tokens(self) -> TokenIds:
        """All its tokens in the form that the cache takes them fastest."""
        return self.token_ids if self.num_output_tokens else self.packed_prompt

    def match_in(self, cache: CacheScheme[Any]) -> Match:
        """What the cache has of its tokens now, and it may use. O(edges), and O(tokens) when there is output.

        Nothing for one that bypasses the cache, nor for one that still needs the logits of its prompt.
        """
        request = self.request
        if not request.use_cache or self.max_cached_tokens is not None:
            return Match([], 0, None)
        return cache.match(self.cache_tokens, request.namespace, num_public_tokens=request.num_public_tokens)

    def has_common_block(self, other: Sequence, block: int, block_size: int) -> bool:
        """Whether both prompts have a whole block of this number, and the same. O(block)."""
        start, end = TOKEN_BYTES * block * block_size, TOKEN_BYTES * (block + 1) * block_size
        tokens = self.packed_prompt[start:end]
        return len(tokens) == end - start and tokens == other.packed_prompt[start:end]

    def num_common_prompt_tokens(self, other: Sequence) -> int:
        """Length of the longest common prefix of the two prompts. O(length), at memory speed."""
        length = min(len(self._prompt), len(other._prompt))
        differs = self._prompt[:length] != other._prompt[:length]
        return int(differs.argmax()) if differs.any() else length

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests."""
        assert self.num_computed_tokens < len(self.token_ids) <= self.max_total_tokens
        if self.handle is None:
            assert self.num_computed_tokens == 0
        else:
            assert self.num_computed_tokens <= self.handle.num_tokens <= len(self.token_ids)
