"""Attention over plan items by one compiled kernel: a layer is one parallel region, the merge included."""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from prefixcache_worker.attention.kv_pool import KvPool
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import CHUNK_ROWS, SEGMENT_ROWS, AttentionPlan
from prefixcache_worker.native_library import load_library
from prefixcache_worker.profiler_range import ATTENTION, profiler_range

SOURCE = Path(__file__).with_name("attention_kernel.cpp")

_TASK_FIELDS = (
    "first_block",
    "first_row",
    "num_rows",
    "first_position",
    "first_token",
    "level",
    "first_query",
    "num_queries",
)
"""Columns of the task table, in the order of the kernel's `Task`."""

_FORMATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int8: 3, torch.uint8: 4}
"""The kernel's `Format` of a pool's rows."""


class _Place(ctypes.Structure):
    """The kernel's `Place`: a tensor [num_layers, num_slots, num_kv_heads, ...]."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("layer_stride", ctypes.c_int64),
        ("slot_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
    )

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Place:
        return cls(tensor.data_ptr(), *(stride * tensor.itemsize for stride in tensor.stride()[:3]))


class _Pool(ctypes.Structure):
    """The kernel's `Pool`: keys or values."""

    _fields_ = (
        ("rows", _Place),
        ("scales", _Place),
        ("fixed_scale", ctypes.c_void_p),
        ("format", ctypes.c_int64),
    )

    @classmethod
    def of(cls, pool: KvPool) -> _Pool:
        return cls(
            rows=_Place.of(pool.rows),
            scales=_Place() if pool.scales is None else _Place.of(pool.scales),
            fixed_scale=None if pool.fixed_scale is None else pool.fixed_scale.data_ptr(),
            format=_FORMATS[pool.rows.dtype],
        )


class _Step(ctypes.Structure):
    """The kernel's `Step`: one layer of one step."""

    _fields_ = (
        ("query", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("keys", _Pool),
        ("values", _Pool),
        ("positions", ctypes.c_void_p),
        ("block_ids", ctypes.c_void_p),
        ("partial_output", ctypes.c_void_p),
        ("partial_max", ctypes.c_void_p),
        ("partial_sum", ctypes.c_void_p),
        ("partial_segment", ctypes.c_void_p),
        ("layer", ctypes.c_int64),
        ("num_tokens", ctypes.c_int64),
        ("num_levels", ctypes.c_int64),
        ("num_query_heads", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("window_size", ctypes.c_int64),
        ("num_sinks", ctypes.c_int64),
        ("scale", ctypes.c_double),
    )


@cache
def _library() -> ctypes.CDLL:
    library = load_library(SOURCE)
    for function in ("max_queries_per_task", "max_head_dim", "lanes", "chunk_rows", "segment_rows"):
        getattr(library, function).restype = ctypes.c_int64
    library.attend.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    assert (library.chunk_rows(), library.segment_rows()) == (CHUNK_ROWS, SEGMENT_ROWS)
    return library


def prepare_native_attention() -> None:
    """Build and load the kernel now rather than in the first step. Raises NativeLibraryError."""
    _library()


def max_head_dim() -> int:
    """The largest head the kernel takes. Requires: `prepare_native_attention` succeeds."""
    return int(_library().max_head_dim())


class NativeAttention:
    """`StepAttention` for one step on a CPU. Makes its task table once, for all layers.

    A token's output is the same bit for bit in whatever batch it is computed, whoever shares its rows,
    wherever these lie, and whether it is one of a prompt's or decoded alone.
    """

    def __init__(self, plan: AttentionPlan, store: KvStore) -> None:
        shape = store.layout.shape
        self._store = store
        self._slots = torch.tensor(plan.slot_mapping())
        if store.listener is not None:
            store.listener.planned(plan)
        self._positions = np.array(plan.positions, dtype=np.int64)
        self._tasks, self._block_ids = _tabulate(plan, shape.group_size)
        # Every layer overwrites the same places; where a query has no such partial, the maximum stays -inf.
        size = (plan.num_levels, plan.num_tokens, shape.num_query_heads)
        lanes = int(_library().lanes())
        self._partial_output = torch.empty(*size, -(-shape.head_dim // lanes) * lanes)
        self._partial_max = torch.full(size, -torch.inf)
        self._partial_sum = torch.empty(size)
        self._partial_segment = torch.empty(size, dtype=torch.int32)
        window = plan.window
        self._step = _Step(
            keys=_Pool.of(store.keys),
            values=_Pool.of(store.values),
            positions=self._positions.ctypes.data,
            block_ids=self._block_ids.ctypes.data,
            partial_output=self._partial_output.data_ptr(),
            partial_max=self._partial_max.data_ptr(),
            partial_sum=self._partial_sum.data_ptr(),
            partial_segment=self._partial_segment.data_ptr(),
            num_tokens=plan.num_tokens,
            num_levels=plan.num_levels,
            num_query_heads=shape.num_query_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            block_size=plan.block_size,
            window_size=0 if window is None else window.size,
            num_sinks=0 if window is None else window.num_sinks,
            scale=shape.scale,
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
        step = self._step
        step.layer, step.query, step.output = layer, query.data_ptr(), output.data_ptr()
        with profiler_range(ATTENTION):
            _library().attend(
                ctypes.addressof(step), self._tasks.ctypes.data, len(self._tasks), torch.get_num_threads()
            )
        return output


def _tabulate(
    plan: AttentionPlan, group_size: int
) -> tuple[np.ndarray, np.ndarray]:  # [num_tasks, 8] int64, [all items' blocks] int64
    """Cut the items into tasks of a tile of query rows, the longest tasks first."""
    width = int(_library().max_queries_per_task())
    tasks: list[tuple[int, ...]] = []
    first_block = 0
    for item in plan.items:
        num_queries = item.num_tokens * group_size
        tile = -(-num_queries // -(-num_queries // width))
        head = (
            first_block,
            item.first_row,
            item.num_rows,
            item.first_position,
            item.first_token,
            item.level,
        )
        tasks += [(*head, query, min(tile, num_queries - query)) for query in range(0, num_queries, tile)]
        first_block += len(item.block_ids)
    table = np.array(tasks, dtype=np.int64)
    cost = table[:, _TASK_FIELDS.index("num_rows")] * table[:, _TASK_FIELDS.index("num_queries")]
    block_ids = np.fromiter(chain.from_iterable(item.block_ids for item in plan.items), dtype=np.int64)
    return np.ascontiguousarray(table[np.argsort(-cost, kind="stable")]), block_ids
