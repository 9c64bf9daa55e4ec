"""What is known of each block's keys without reading them."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from prefixcache import BlockCopy, BlockId
from prefixcache_worker.attention.kv_pool import KvPool
from prefixcache_worker.model.model import AttentionShape


class BlockSummaries:
    """The least and the greatest key of every block, channel by channel.

    What is kept of a block is what its rows up to the last one written give, so it depends on nothing
    else; a row at a block's first slot starts it anew.
    """

    def __init__(self, keys: KvPool) -> None:
        shape, device = keys.layout.shape, keys.rows.device
        size = (shape.num_layers, keys.layout.num_blocks, shape.num_kv_heads, shape.head_dim)
        self._keys = keys
        self._block_size = keys.layout.block_size
        self.least = torch.zeros(size, device=device)
        self.greatest = torch.zeros(size, device=device)

    @staticmethod
    def block_bytes(shape: AttentionShape) -> int:
        """What they add to a block: two float32 for each channel of each head and layer."""
        return 2 * torch.float32.itemsize * shape.num_layers * shape.num_kv_heads * shape.head_dim

    def note(
        self,
        layer: int,
        slots: torch.Tensor,  # [num_tokens] int64, no slot twice
    ) -> None:
        """Rows were written: what can be read of them counts, not what they were before they were rounded.

        Requires: those of a block in order, from its first slot on.
        """
        block_ids, places = slots // self._block_size, slots % self._block_size
        opened = block_ids[places == 0]
        self.least[layer, opened] = torch.inf
        self.greatest[layer, opened] = -torch.inf
        rows = self._keys.read(layer, slots)
        targets = block_ids[:, None, None].expand_as(rows)
        self.least[layer].scatter_reduce_(0, targets, rows, "amin")
        self.greatest[layer].scatter_reduce_(0, targets, rows, "amax")

    def note_copies(self, copies: Iterable[BlockCopy]) -> None:
        """Blocks were copied as far as the orders say. O(rows copied)."""
        for _, target, num_slots in copies:
            self._summarise(target, num_slots)

    def note_blocks(self, block_ids: Iterable[BlockId]) -> None:
        """Whole blocks were overwritten. O(their rows)."""
        for block_id in block_ids:
            self._summarise(block_id, self._block_size)

    def _summarise(self, block_id: BlockId, num_slots: int) -> None:
        slots = slice(block_id * self._block_size, block_id * self._block_size + num_slots)
        for layer in range(len(self.least)):
            rows = self._keys.read(layer, slots)
            self.least[layer, block_id], self.greatest[layer, block_id] = rows.amin(0), rows.amax(0)

    def score_bounds(
        self,
        layer: int,
        query: torch.Tensor,  # [num_sequences, num_kv_heads, group, head_dim]
        block_ids: torch.Tensor,  # [num_sequences, num_blocks] int64
    ) -> torch.Tensor:  # [num_sequences, num_kv_heads, num_blocks]
        """What no unscaled score of a block's rows exceeds, the greatest over the heads that share them."""
        least = self.least[layer, block_ids].permute(0, 2, 3, 1)  # [sequences, heads, dim, blocks]
        greatest = self.greatest[layer, block_ids].permute(0, 2, 3, 1)
        bounds = query.clamp(min=0) @ greatest + query.clamp(max=0) @ least
        return bounds.amax(dim=2)
