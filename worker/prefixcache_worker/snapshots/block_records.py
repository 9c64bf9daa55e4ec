"""The rows of one block after the other, beside an engine that goes on."""

from __future__ import annotations

import math

import numpy as np
import torch

from prefixcache import BlockId
from prefixcache_worker.attention.kv_store import KvStore


class BlockRecords:
    """Reads and writes records as `KvStore.read_blocks` gives them, one block at a time. For one thread.

    On a CPU by plain copies: torch's own operators would start a team of threads for this thread too,
    and with more teams than cores every step of the engine takes longer. On a GPU on a stream of its own.
    """

    def __init__(self, store: KvStore) -> None:
        """Rows that were written before now are read as written. Requires: the engine's thread."""
        self._store = store
        self._record = np.empty(store.record_bytes, np.uint8)
        self._planes: list[np.ndarray] = []  # [num_layers, num_slots, num_kv_heads, ...] each
        self._stream: torch.cuda.Stream | None = None
        if store.device.type == "cuda":
            self._stream = torch.cuda.Stream(store.device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(store.device))
        else:
            self._planes = [_as_numpy(tensor) for tensor in store.tensors()]

    def read(self, block_id: BlockId) -> memoryview:
        """The block's record. The memory is another block's after the next call."""
        if self._stream is not None:
            with torch.cuda.stream(self._stream):
                return memoryview(self._store.read_blocks([block_id]))
        for plane, part in self._parts(block_id, self._record):
            np.copyto(part, plane)
        return self._record.data

    def write(self, block_id: BlockId, record: memoryview) -> None:
        """Overwrite a block. Requires: the engine's thread."""
        if self._stream is not None:
            self._store.write_blocks([block_id], bytes(record))
            return
        for plane, part in self._parts(block_id, np.frombuffer(record, np.uint8)):
            np.copyto(plane, part)
        self._store.note_written([block_id])

    def _parts(self, block_id: BlockId, record: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """The block in each tensor, and its place in a record."""
        slots = slice(block_id * self._store.block_size, (block_id + 1) * self._store.block_size)
        parts, first = [], 0
        for plane in self._planes:
            in_plane = plane[:, slots]
            last = first + math.prod(in_plane.shape) * plane.itemsize
            parts.append((in_plane, record[first:last].view(plane.dtype).reshape(in_plane.shape)))
            first = last
        return parts


def _as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's own memory. numpy has no bfloat16, and copies need only its size."""
    return tensor.view(torch.int16).numpy() if tensor.dtype is torch.bfloat16 else tensor.numpy()
