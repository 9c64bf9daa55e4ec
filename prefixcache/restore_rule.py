"""When copying blocks from a tier is sooner done than computing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRule:
    """Measured times of one block. A `NumWorthRestoring`."""

    copy_seconds: tuple[float, ...]
    """From each tier to the pool, the nearest first, and once back, for it may be evicted again."""
    compute_seconds: float
    """Of its tokens, at the beginning of a prompt, where they cost least."""

    def __call__(self, tiers: Sequence[int]) -> int:
        """How many of these blocks to copy, which saves most time. O(blocks).

        A block can only be used behind all before it, so one that is slower to copy is copied when it
        leads to others that save more.
        """
        best, most_saved, saved = 0, 0.0, 0.0
        for num_blocks, tier in enumerate(tiers, start=1):
            saved += self.compute_seconds - self.copy_seconds[tier - 1]
            if saved > most_saved:
                best, most_saved = num_blocks, saved
        return best
