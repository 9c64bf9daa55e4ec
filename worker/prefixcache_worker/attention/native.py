"""Attention over plan items by one compiled kernel: a layer is one parallel region, the merge included."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
import torch

from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import AttentionPlan
from prefixcache_worker.native_library import load_library

SOURCE = Path(__file__).with_name("attention_kernel.cpp")

_TASK_FIELDS = (
    "first_slot",
    "num_rows",
    "first_token",
    "level",
    "causal",
    "kv_head",
    "first_query",
    "num_queries",
)
"""Columns of the task table, in the order of the kernel's `Task`."""


class _Step(ctypes.Structure):
    """The kernel's `Step`: one layer of one step."""

    _fields_ = (
        ("query", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("slot_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("slots", ctypes.c_void_p),
        ("partial_output", ctypes.c_void_p),
        ("partial_max", ctypes.c_void_p),
        ("partial_sum", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("num_tokens", ctypes.c_int64),
        ("num_levels", ctypes.c_int64),
        ("num_query_heads", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
    )


@cache
def _library() -> ctypes.CDLL:
    library = load_library(SOURCE)
    library.max_queries_per_task.restype = ctypes.c_int64
    library.max_head_dim.restype = ctypes.c_int64
    library.attend.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    return library


def prepare_native_attention() -> None:
    """Build and load the kernel now rather than in the first step. Raises NativeLibraryError."""
    _library()


def max_head_dim() -> int:
    """The largest head the kernel takes. Requires: `prepare_native_attention` succeeds."""
    return int(_library().max_head_dim())


class NativeAttention:
    """`StepAttention` for one step, float32 on a CPU. Makes its task table once, for all layers."""

    def __init__(self, plan: AttentionPlan, store: KvStore) -> None:
        shape = store.layout.shape
        self._store = store
        self._slots = torch.tensor(plan.slot_mapping())
        self._tasks, self._item_slots = _tabulate(plan, shape.num_kv_heads, shape.group_size)
        # Every layer overwrites the same places; where a query has no such partial, the maximum stays -inf.
        size = (plan.num_levels, plan.num_tokens, shape.num_query_heads)
        self._partial_output = torch.empty(*size, shape.head_dim)
        self._partial_max = torch.full(size, -torch.inf)
        self._partial_sum = torch.empty(size)
        self._step = _Step(
            slots=self._item_slots.ctypes.data,
            partial_output=self._partial_output.data_ptr(),
            partial_max=self._partial_max.data_ptr(),
            partial_sum=self._partial_sum.data_ptr(),
            num_tokens=plan.num_tokens,
            num_levels=plan.num_levels,
            num_query_heads=shape.num_query_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
        )

    def attend(
        self,
        layer: int,
        query: torch.Tensor,  # [num_tokens, num_query_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    ) -> torch.Tensor:  # [num_tokens, num_query_heads, head_dim]
        """See `StepAttention.attend`. Reads each item's rows once for all its queries, where they lie."""
        self._store.write(layer, self._slots, key, value)
        query = query.contiguous()
        output = torch.empty_like(query)
        keys, values = self._store.keys.rows[layer], self._store.values.rows[layer]
        step = self._step
        step.query, step.output = query.data_ptr(), output.data_ptr()
        step.keys, step.values = keys.data_ptr(), values.data_ptr()
        step.slot_stride, step.head_stride = keys.stride(0), keys.stride(1)
        _library().attend(
            ctypes.addressof(step), self._tasks.ctypes.data, len(self._tasks), torch.get_num_threads()
        )
        return output


def _tabulate(
    plan: AttentionPlan, num_kv_heads: int, group_size: int
) -> tuple[np.ndarray, np.ndarray]:  # [num_tasks, 8] int64, [all items' rows] int64
    """Cut the items into tasks of one KV head and a tile of query rows, the longest tasks first."""
    width = int(_library().max_queries_per_task())
    size = plan.block_size
    tasks: list[tuple[int, ...]] = []
    slots: list[np.ndarray] = []
    first_slot = 0
    for item in plan.items:
        num_queries = item.num_tokens * group_size
        num_tiles = -(-num_queries // width)
        tile = -(-num_queries // num_tiles)
        for first_query in range(0, num_queries, tile):
            length = min(tile, num_queries - first_query)
            head = (first_slot, item.num_rows, item.first_token, item.level, int(item.causal))
            tasks += [(*head, kv_head, first_query, length) for kv_head in range(num_kv_heads)]
        rows = np.arange(item.first_row, item.first_row + item.num_rows)
        slots.append(np.asarray(item.block_ids, dtype=np.int64)[rows // size] * size + rows % size)
        first_slot += item.num_rows
    table = np.array(tasks, dtype=np.int64).reshape(-1, len(_TASK_FIELDS))
    cost = table[:, _TASK_FIELDS.index("num_rows")] * table[:, _TASK_FIELDS.index("num_queries")]
    return np.ascontiguousarray(table[np.argsort(-cost, kind="stable")]), np.concatenate(slots)
