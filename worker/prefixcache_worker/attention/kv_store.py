"""The tensors behind the block ids."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import NamedTuple

import torch

from prefixcache import BlockCopy, BlockId
from prefixcache_worker.attention.block_summaries import BlockSummaries
from prefixcache_worker.attention.kv_format import FP32, KvFormat
from prefixcache_worker.attention.kv_listener import KvListener
from prefixcache_worker.attention.kv_pool import KvPool
from prefixcache_worker.attention.layout import KvLayout, LayoutOrder, TensorPlace
from prefixcache_worker.model.model import AttentionShape

HAS_TRITON = find_spec("triton") is not None
"""Whether copies on a GPU can be one launch; without it they are one for each block."""


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
        with_summaries: bool = False,
    ) -> None:
        """`with_summaries` keeps bounds of each block's keys too, for reads that choose among blocks."""
        self.layout = KvLayout(shape=shape, num_blocks=num_blocks, block_size=block_size, order=order)
        self.format = kv_format
        self.keys = KvPool(self.layout, kv_format.keys, fixed_scales.keys, device=device)
        self.values = KvPool(self.layout, kv_format.values, fixed_scales.values, device=device)
        self.summaries = BlockSummaries(self.keys) if with_summaries else None
        self.listener: KvListener | None = None
        """Who hears of reads and writes; None: nobody."""

    @property
    def block_size(self) -> int:
        return self.layout.block_size

    @property
    def num_blocks(self) -> int:
        return self.layout.num_blocks

    @property
    def block_bytes(self) -> int:
        """What a block takes: its record, and its summary if there is one."""
        summary_bytes = 0 if self.summaries is None else BlockSummaries.block_bytes(self.layout.shape)
        return self.record_bytes + summary_bytes

    @property
    def record_bytes(self) -> int:
        """What `read_blocks` gives of a block."""
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
        if self.summaries is not None:
            self.summaries.note(layer, slots)
        if self.listener is not None:
            self.listener.written(layer, slots)

    def copy_blocks(self, copies: Iterable[BlockCopy]) -> None:
        """Execute copy-on-write orders in every layer. Sources are fenced by the cache, so order is free."""
        copies = list(copies)
        if self.device.type == "cuda" and HAS_TRITON:
            self._copy_on_gpu(copies)
        else:
            for source, target, num_slots in copies:
                from_slot, to_slot = source * self.block_size, target * self.block_size
                for tensor in self.tensors():
                    tensor[:, to_slot : to_slot + num_slots] = tensor[:, from_slot : from_slot + num_slots]
        if self.summaries is not None:
            self.summaries.note_copies(copies)

    def _copy_on_gpu(self, copies: list[BlockCopy]) -> None:
        # Only here: a machine without a GPU need not have triton.
        from prefixcache_worker.attention.triton.block_copy import copy_blocks

        if copies:
            copy_blocks(self.tensors(), copies, self.block_size)

    def fill_blocks(self, block_ids: Iterable[BlockId], value: float) -> None:
        """Overwrite whole blocks with one number. For tests that poison what nobody may read.

        What can hold NaN or infinity holds it: rows of floats, and the scales of codes. Codes become the
        largest ones, so that they are wrong even under fixed scales.
        """
        for block_id in block_ids:
            slots = slice(block_id * self.block_size, (block_id + 1) * self.block_size)
            for tensor in self.tensors():
                tensor[:, slots] = value if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max

    def read_blocks(self, block_ids: Sequence[BlockId]) -> bytes:
        """The blocks' records, one after the other, `record_bytes` each.

        A record is all that the block holds: rows of keys, their scales, rows of values, their scales,
        each as [layer][slot][head][element], in the machine's byte order. It says nothing of where the
        block lay, so it fits any block of any store of the same `fingerprint`, whatever the layout.
        """
        return self.records(block_ids).cpu().numpy().tobytes()

    def write_blocks(self, block_ids: Sequence[BlockId], records: bytes) -> None:
        """Overwrite blocks with records from `read_blocks` of a store of the same `fingerprint`.

        Requires: no block twice, and as many records as blocks.
        """
        assert len(records) == len(block_ids) * self.record_bytes
        if block_ids:
            table = torch.frombuffer(bytearray(records), dtype=torch.uint8)
            self.set_records(block_ids, table.view(-1, self.record_bytes))

    def records(self, block_ids: Sequence[BlockId]) -> torch.Tensor:  # [num_blocks, record_bytes] uint8
        """A copy of the blocks' records, on the store's device."""
        slots = self._slots_of(block_ids)
        columns = []
        for tensor in self.tensors():
            num_layers, width = len(tensor), self._block_width(tensor)
            by_layer = tensor[:, slots].reshape(num_layers, len(block_ids), width)
            by_block = by_layer.transpose(0, 1).reshape(len(block_ids), num_layers * width)
            columns.append(by_block.view(torch.uint8))
        return torch.cat(columns, dim=1)

    def set_records(
        self,
        block_ids: Sequence[BlockId],
        table: torch.Tensor,  # [num_blocks, record_bytes] uint8, on any device
    ) -> None:
        """Overwrite blocks with these records. Requires: no block twice."""
        slots = self._slots_of(block_ids)
        table = table.to(self.device)
        first = 0
        for tensor in self.tensors():
            num_layers, width = len(tensor), self._block_width(tensor)
            last = first + num_layers * width * tensor.itemsize
            by_block = table[:, first:last].clone(memory_format=torch.contiguous_format).view(tensor.dtype)
            by_layer = by_block.view(len(block_ids), num_layers, width).transpose(0, 1)
            tensor.index_copy_(1, slots, by_layer.reshape(num_layers, len(slots), *tensor.shape[2:]))
            first = last
        self.note_written(block_ids)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Everything of a record, in its order: [num_layers, num_slots, num_kv_heads, ...] each."""
        return (*self.keys.tensors(), *self.values.tensors())

    def note_written(self, block_ids: Sequence[BlockId]) -> None:
        """Whole blocks of `tensors` were overwritten from outside. O(their rows)."""
        if self.summaries is not None:
            self.summaries.note_blocks(block_ids)

    def places(self) -> tuple[TensorPlace, ...]:
        """Maps of the store's tensors: their sizes, strides and offsets in bytes."""
        return (*self.keys.places("keys"), *self.values.places("values"))

    @property
    def fingerprint(self) -> str:
        """Equal for two stores exactly when a record of one means the same rows in the other.

        Covers format, sizes and fixed scales. Not whose model the rows are of: that is the namespace's.
        """
        shape = self.layout.shape
        sizes = (shape.num_layers, shape.num_kv_heads, shape.head_dim, self.block_size)
        digest = hashlib.sha256(f"{self.format.name} {sizes} {sys.byteorder}".encode())
        for pool in (self.keys, self.values):
            if pool.fixed_scale is not None:
                digest.update(pool.fixed_scale.cpu().numpy().tobytes())
        return digest.hexdigest()

    def _block_width(self, tensor: torch.Tensor) -> int:
        """Elements of one block in one layer of one of the tensors."""
        return self.block_size * math.prod(tensor.shape[2:])

    def _slots_of(self, block_ids: Sequence[BlockId]) -> torch.Tensor:  # [num_blocks * block_size] int64
        first_slots = torch.tensor(block_ids, dtype=torch.int64, device=self.device) * self.block_size
        return (first_slots[:, None] + torch.arange(self.block_size, device=self.device)).flatten()
