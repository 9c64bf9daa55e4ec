"""The tensors behind the block ids."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from prefixcache import BlockCopy, BlockId
from prefixcache_worker.attention.layout import KvLayout, LayoutOrder
from prefixcache_worker.model.model import AttentionShape


class KvStore:
    """Keys and values of every block, allocated once; nothing here grows or moves.

    Holds tensors, never counts: which block belongs to whom is `PrefixCache`'s business.
    """

    def __init__(
        self,
        shape: AttentionShape,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        order: LayoutOrder = LayoutOrder.LAYER_FIRST,
    ) -> None:
        self.layout = KvLayout(shape=shape, num_blocks=num_blocks, block_size=block_size, order=order)
        self.keys = self.layout.allocate(dtype, device)  # [num_layers, num_slots, num_kv_heads, head_dim]
        self.values = self.layout.allocate(dtype, device)

    @staticmethod
    def bytes_per_block(shape: AttentionShape, block_size: int, dtype: torch.dtype = torch.float32) -> int:
        """Bytes one block takes: 2 * layers * KV heads * head size * block size * element size."""
        return KvLayout(shape=shape, num_blocks=1, block_size=block_size).elements_per_block * dtype.itemsize

    @property
    def block_size(self) -> int:
        return self.layout.block_size

    @property
    def num_blocks(self) -> int:
        return self.layout.num_blocks

    @property
    def block_bytes(self) -> int:
        return self.layout.elements_per_block * self.keys.dtype.itemsize

    @property
    def dtype(self) -> torch.dtype:
        return self.keys.dtype

    def write(
        self,
        layer: int,
        slots: torch.Tensor,  # [num_tokens] int64, no slot twice
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    ) -> None:
        """Store one layer's new rows. Cost: one pass over the rows."""
        self.keys[layer].index_copy_(0, slots, key.to(self.dtype))
        self.values[layer].index_copy_(0, slots, value.to(self.dtype))

    def copy_blocks(self, copies: Iterable[BlockCopy]) -> None:
        """Execute copy-on-write orders in every layer. Sources are fenced by the cache, so order is free."""
        for source, target, num_slots in copies:
            from_slot, to_slot = source * self.block_size, target * self.block_size
            for pool in (self.keys, self.values):
                pool[:, to_slot : to_slot + num_slots] = pool[:, from_slot : from_slot + num_slots]

    def fill_blocks(self, block_ids: Iterable[BlockId], value: float) -> None:
        """Overwrite whole blocks with one number. For tests that poison what nobody may read."""
        for block_id in block_ids:
            slots = slice(block_id * self.block_size, (block_id + 1) * self.block_size)
            self.keys[:, slots] = value
            self.values[:, slots] = value
