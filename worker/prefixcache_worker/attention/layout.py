"""Where a KV row lies in memory: every size and stride of the pool."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import torch

from prefixcache_worker.model.model import AttentionShape


class LayoutOrder(Enum):
    """Which of layers and heads is the outer dimension of the pool."""

    LAYER_FIRST = "layer-first"
    """[layer][slot][head][element]: all heads of a token lie together; one layer is one region."""
    HEAD_FIRST = "head-first"
    """[head][layer][slot][element]: all tokens of a head lie together, row after row."""


class TensorPlace(NamedTuple):
    """Where everything is in one tensor of the pool: what a reader in any language needs."""

    name: str
    dtype: torch.dtype
    size: tuple[int, int, int, int]
    """Elements by (layer, slot, head, element)."""
    strides: tuple[int, int, int, int]
    """Bytes between neighbours in the same order."""

    @classmethod
    def of(
        cls,
        name: str,
        tensor: torch.Tensor,  # [num_layers, num_slots, num_kv_heads, width], or without width
    ) -> TensorPlace:
        """The map of a tensor as it lies in memory, whatever it should be."""
        by_element = tensor if tensor.dim() == 4 else tensor.unsqueeze(-1)
        layer, slot, head, element = (stride * tensor.itemsize for stride in by_element.stride())
        layers, slots, heads, width = by_element.shape
        return cls(name, tensor.dtype, (layers, slots, heads, width), (layer, slot, head, element))

    @property
    def num_bytes(self) -> int:
        return math.prod(self.size) * self.dtype.itemsize

    def offset(self, layer: int, slot: int, head: int, element: int = 0) -> int:
        """Bytes from the tensor's first to this element."""
        return sum(i * stride for i, stride in zip((layer, slot, head, element), self.strides, strict=True))


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

    def size(self, width: int) -> tuple[int, int, int, int]:
        """Elements by (layer, slot, head, element)."""
        return self.shape.num_layers, self.num_slots, self.shape.num_kv_heads, width

    def allocate(self, width: int, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
        """One tensor, zeroed so that its pages exist before the first request.

        Returns: [num_layers, num_slots, num_kv_heads, width] in this layout's strides.
        """
        return torch.empty_strided(self.size(width), self.strides(width), dtype=dtype, device=device).zero_()
