"""The decoding state of one choice of a request."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import torch

from prefixcache_worker.engine.assembler import Assembler
from prefixcache_worker.engine.cache_scheme import SequenceHandle
from prefixcache_worker.engine.request import Request
from prefixcache_worker.engine.sampler import choice_generator


class Sequence:
    """Tokens of one choice, and how far their KV is written.

    Invariants between two steps, proved by `check`: `num_computed_tokens < len(token_ids)`, so that there
    is always something to compute; a handle has room for every computed token, and without one, while
    it waits, nothing counts as computed.
    """

    def __init__(
        self, key: Hashable, request: Request, index: int, assembler: Assembler, max_total_tokens: int
    ) -> None:
        self.key = key
        """The engine's key of the request."""
        self.request = request
        self.index = index
        self.token_ids = list(request.prompt_token_ids)
        self.num_computed_tokens = 0
        self.handle: SequenceHandle | None = None
        self.assembler = assembler
        self.max_total_tokens = max_total_tokens
        self.generator: torch.Generator | None = (
            None if request.sampling.temperature == 0 else choice_generator(request.sampling.seed, index)
        )
        self._prompt = np.array(request.prompt_token_ids, dtype=np.uint32)

    @property
    def running_handle(self) -> SequenceHandle:
        """The handle of a sequence that runs."""
        assert self.handle is not None, "a waiting sequence holds no blocks"
        return self.handle

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
    def is_prefilling(self) -> bool:
        return self.num_computed_tokens < self.num_prompt_tokens

    @property
    def num_choices_to_fork(self) -> int:
        """Choices that will split off when the prompt is computed."""
        return self.request.num_choices - 1 if self.index == 0 and self.num_output_tokens == 0 else 0

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
