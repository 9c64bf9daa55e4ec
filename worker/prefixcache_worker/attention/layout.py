"""Where a KV row lies in memory: every size and stride of the pool."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from prefixcache_worker.model.model import AttentionShape


class LayoutOrder(Enum):
    """Which of layers and heads is the outer dimension of the pool."""

    LAYER_FIRST = "layer-first"
    """[layer][slot][head][element]: all heads of a token lie together; one layer is one region."""
    HEAD_FIRST = "head-first"
    """[head][layer][slot][element]: all tokens of a head lie together, row after row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """Sizes and strides of the pool's tensors: rows of keys, rows of values, and scales.

    A slot is one token's place; block b owns slots [b * block_size, (b + 1) * block_size), so a run
    of consecutive block ids is a run of rows with one constant stride. Offsets are Python integers
    or int64 and never wrap.
    """

    shape: AttentionShape
    num_blocks: int
    block_size: int
    order: LayoutOrder = LayoutOrder.LAYER_FIRST

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size

    def strides(self, width: int) -> tuple[int, int, int, int]:
        """Elements between neighbours in (layer, slot, head, element), where a head has `width` of them."""
        layers, heads = self.shape.num_layers, self.shape.num_kv_heads
        if self.order is LayoutOrder.LAYER_FIRST:
            return self.num_slots * heads * width, heads * width, width, 1
        return self.num_slots * width, width, layers * self.num_slots * width, 1

    def allocate(self, width: int, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
        """One tensor, zeroed so that its pages exist before the first request.

        Returns: [num_layers, num_slots, num_kv_heads, width] in this layout's strides.
        """
        size = (self.shape.num_layers, self.num_slots, self.shape.num_kv_heads, width)
        return torch.empty_strided(size, self.strides(width), dtype=dtype, device=device).zero_()
