"""What the sampler knows of one choice."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as SequenceOf

import numpy as np

from prefixcache_worker.constraint.constraint import ConstraintState
from prefixcache_worker.engine.random_numbers import choice_key, uniform
from prefixcache_worker.engine.request import SamplingParams
from prefixcache_worker.engine.token_counts import TokenCounts

NO_IDS = np.empty(0, dtype=np.int64)
NO_BIASES = np.empty(0, dtype=np.float32)


class SamplingState:
    """How one choice chooses its next token. Changed by `append` alone.

    It holds nothing of the step: a choice that is preempted, or that runs in other company, chooses the same.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        index: int = 0,
        prompt_token_ids: SequenceOf[int] = (),
        ending_ids: Collection[int] = (),
        min_tokens: int = 0,
        constraint: ConstraintState | None = None,
    ) -> None:
        """`ending_ids` cannot come before `min_tokens` tokens were generated.

        O(prompt * log prompt) with penalties, else O(1).
        """
        self.params = params
        self.bias_ids, self.biases = NO_IDS, NO_BIASES
        if params.logit_bias:
            token_ids, biases = zip(*params.logit_bias, strict=True)
            self.bias_ids = np.array(token_ids, dtype=np.int64)
            self.biases = np.array(biases, dtype=np.float32)
        self.counts = TokenCounts(prompt_token_ids) if params.has_penalties else None
        self.constraint = constraint
        self._key = choice_key(params.seed, index)
        self._ending_ids = np.array(sorted(ending_ids), dtype=np.int64)
        self._min_tokens = min_tokens
        self._num_generated = 0

    @property
    def banned_ids(self) -> np.ndarray:  # [n] int64
        """Tokens that cannot be the next one."""
        return self._ending_ids if self._num_generated < self._min_tokens else NO_IDS

    @property
    def uniform(self) -> float:
        """The random number of the next token, in [0, 1)."""
        return uniform(self._key, self._num_generated)

    def append(self, token_id: int) -> None:
        """The next token is this one."""
        self._num_generated += 1
        if self.counts is not None:
            self.counts.add(token_id)
        if self.constraint is not None:
            self.constraint.accept(token_id)
