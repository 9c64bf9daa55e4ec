"""What requests came to in a replay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class ReplayCounts:
    """Sums over requests. An id is a token, or a whole block where the trace has only blocks."""

    num_requests: int = 0
    num_refused: int = 0
    """Requests that found no room in the cache, and so no hits."""
    num_prompt_ids: int = 0
    num_hit_ids: int = 0

    @classmethod
    def total(cls, parts: Iterable[ReplayCounts]) -> ReplayCounts:
        """The sum of all parts. O(parts)."""
        total = cls()
        for part in parts:
            total.num_requests += part.num_requests
            total.num_refused += part.num_refused
            total.num_prompt_ids += part.num_prompt_ids
            total.num_hit_ids += part.num_hit_ids
        return total
