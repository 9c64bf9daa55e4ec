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
    """Sizes and strides of one of the two pool tensors (keys or values).

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

    @property
    def elements_per_block(self) -> int:
        """Elements of keys and values together, all layers."""
        return 2 * self.block_size * self.shape.num_layers * self.shape.num_kv_heads * self.shape.head_dim

    def strides(self) -> tuple[int, int, int, int]:
        """Elements between neighbours in (layer, slot, head, element)."""
        layers, heads, dim = self.shape.num_layers, self.shape.num_kv_heads, self.shape.head_dim
        if self.order is LayoutOrder.LAYER_FIRST:
            return self.num_slots * heads * dim, heads * dim, dim, 1
        return self.num_slots * dim, dim, layers * self.num_slots * dim, 1

    def allocate(self, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
        """One pool tensor, zeroed so that its pages exist before the first request.

        Returns: [num_layers, num_slots, num_kv_heads, head_dim] in this layout's strides.
        """
        size = (self.shape.num_layers, self.num_slots, self.shape.num_kv_heads, self.shape.head_dim)
        return torch.empty_strided(size, self.strides(), dtype=dtype, device=device).zero_()
