"""How the attention kernel cuts its work."""

from __future__ import annotations

from typing import NamedTuple

import torch

MAX_HEAD_DIM = 256
"""What fits a processor's registers and shared memory with the tiles below."""


class TileShape(NamedTuple):
    """The shape of one launch."""

    num_queries: int
    """Query rows of one program; a power of two of at least 16."""
    num_rows: int
    """KV rows of one step of a program; a power of two from 16 to CHUNK_ROWS."""
    num_warps: int
    num_stages: int
    """Loads in flight, in steps."""


def choose_tile(num_queries: int, head_dim: int, stored: torch.dtype) -> TileShape:
    """The tile for runs that up to `num_queries` query rows read, over rows stored in a type.

    As tall as the queries fill, as wide as registers and shared memory of an A100 or later allow.
    Who gets the same tile gets the same bits, whatever else is in the launch.
    """
    holds_codes = not stored.is_floating_point
    if stored == torch.float32:
        num_stages = 2 if head_dim <= 128 else 1
        return TileShape(16, num_rows=64, num_warps=4 if head_dim <= 64 else 8, num_stages=num_stages)
    is_tall, num_stages = num_queries > 16, 2 if holds_codes else 3
    if head_dim > 128:
        num_queries = 32 if is_tall and not holds_codes else 16
        return TileShape(num_queries, num_rows=32, num_warps=8, num_stages=num_stages)
    is_wide = head_dim > 64
    tallest = 32 if stored == torch.uint8 and is_wide else 64  # to unpack codes takes registers
    num_warps = 8 if is_tall and is_wide else 4
    return TileShape(tallest if is_tall else 16, num_rows=64, num_warps=num_warps, num_stages=num_stages)
