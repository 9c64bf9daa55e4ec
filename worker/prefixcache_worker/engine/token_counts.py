"""Which tokens a choice has seen, and how often it generated each: what penalties are made of."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np


class TokenCounts:
    """The distinct tokens of a prompt and of what was generated after it, and how often each was generated.

    Sparse, and kept up token by token: nothing here is as large as the vocabulary. The prompt's own tokens
    are known and not counted, so that a penalty on what was generated does not fall on what was asked.
    """

    def __init__(self, prompt_token_ids: SequenceOf[int]) -> None:
        """O(prompt * log prompt)."""
        self._prompt_ids = np.unique(np.array(prompt_token_ids, dtype=np.int64))
        self._slot_by_id: dict[int, int] = {}  # of generated tokens
        self._num_ids = len(self._prompt_ids)
        self._ids = self._prompt_ids.copy()  # those behind the first num_ids are room for more
        self._counts = np.zeros(self._num_ids, dtype=np.int64)

    @property
    def token_ids(self) -> np.ndarray:  # [num_ids] int64
        """Every token seen, once."""
        return self._ids[: self._num_ids]

    @property
    def num_generated(self) -> np.ndarray:  # [num_ids] int64
        """How often each of `token_ids` was generated; 0 for what only the prompt has."""
        return self._counts[: self._num_ids]

    def add(self, token_id: int) -> None:
        """Count a generated token. O(log prompt), amortised."""
        slot = self._slot_by_id.get(token_id)
        if slot is None:
            slot = self._slot_by_id[token_id] = self._new_slot(token_id)
        self._counts[slot] += 1

    def _new_slot(self, token_id: int) -> int:
        slot = int(np.searchsorted(self._prompt_ids, token_id))
        if slot < len(self._prompt_ids) and self._prompt_ids[slot] == token_id:
            return slot
        slot = self._num_ids
        if slot == len(self._ids):
            capacity = max(8, 2 * slot)
            self._ids, self._counts = np.resize(self._ids, capacity), np.resize(self._counts, capacity)
        self._ids[slot], self._counts[slot] = token_id, 0
        self._num_ids += 1
        return slot
