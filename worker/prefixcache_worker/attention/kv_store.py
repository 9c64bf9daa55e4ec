"""The tensors behind the block ids."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from prefixcache import BlockCopy, BlockId
from prefixcache_worker.attention.kv_format import FP32, KvFormat
from prefixcache_worker.attention.kv_pool import KvPool
from prefixcache_worker.attention.layout import KvLayout, LayoutOrder
from prefixcache_worker.model.model import AttentionShape


class FixedScales(NamedTuple):
    """Scales that are constants of the pool, for the kinds of rows whose format has them."""

    keys: torch.Tensor | None = None  # [num_layers, num_kv_heads, head_dim] float32
    values: torch.Tensor | None = None  # [num_layers, num_kv_heads, head_dim] float32


NO_FIXED_SCALES = FixedScales()


class KvStore:
    """Keys and values of every block, allocated once; nothing here grows or moves.

    Holds tensors, never counts: which block belongs to whom is `PrefixCache`'s business.
    """

    keys: KvPool
    values: KvPool

    def __init__(
        self,
        shape: AttentionShape,
        *,
        num_blocks: int,
        block_size: int,
        kv_format: KvFormat = FP32,
        fixed_scales: FixedScales = NO_FIXED_SCALES,
        device: torch.device | str = "cpu",
        order: LayoutOrder = LayoutOrder.LAYER_FIRST,
    ) -> None:
        self.layout = KvLayout(shape=shape, num_blocks=num_blocks, block_size=block_size, order=order)
        self.format = kv_format
        self.keys = KvPool(self.layout, kv_format.keys, fixed_scales.keys, device=device)
        self.values = KvPool(self.layout, kv_format.values, fixed_scales.values, device=device)

    @property
    def block_size(self) -> int:
        return self.layout.block_size

    @property
    def num_blocks(self) -> int:
        return self.layout.num_blocks

    @property
    def block_bytes(self) -> int:
        return self.format.block_bytes(self.layout.shape, self.block_size)

    @property
    def device(self) -> torch.device:
        return self.keys.rows.device

    def write(
        self,
        layer: int,
        slots: torch.Tensor,  # [num_tokens] int64, no slot twice
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    ) -> None:
        """Store one layer's new rows. See `KvPool.write`."""
        self.keys.write(layer, slots, key)
        self.values.write(layer, slots, value)

    def copy_blocks(self, copies: Iterable[BlockCopy]) -> None:
        """Execute copy-on-write orders in every layer. Sources are fenced by the cache, so order is free."""
        for source, target, num_slots in copies:
            from_slot, to_slot = source * self.block_size, target * self.block_size
            for tensor in self._tensors():
                tensor[:, to_slot : to_slot + num_slots] = tensor[:, from_slot : from_slot + num_slots]

    def fill_blocks(self, block_ids: Iterable[BlockId], value: float) -> None:
        """Overwrite whole blocks with one number. For tests that poison what nobody may read.

        What can hold NaN or infinity holds it: rows of floats, and the scales of codes. Codes become the
        largest ones, so that they are wrong even under fixed scales.
        """
        for block_id in block_ids:
            slots = slice(block_id * self.block_size, (block_id + 1) * self.block_size)
            for tensor in self._tensors():
                tensor[:, slots] = value if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max

    def _tensors(self) -> tuple[torch.Tensor, ...]:
        return (*self.keys.tensors(), *self.values.tensors())
