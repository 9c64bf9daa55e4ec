"""Attention over plan items: one launch for all tasks of a layer."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from prefixcache_worker.attention.kv_pool import KvPool
from prefixcache_worker.attention.plan import CHUNK_ROWS
from prefixcache_worker.attention.triton.partials import Partials, fold
from prefixcache_worker.attention.triton.runtime import dot_dtype, max_programs, tile_dim
from prefixcache_worker.attention.triton.step_table import TASK_FIELDS, StepTable
from prefixcache_worker.attention.triton.tile import TileShape
from prefixcache_worker.model.model import AttentionWindow

NUM_TASK_FIELDS = tl.constexpr(len(TASK_FIELDS))
FAR = tl.constexpr(2**31 - 1)
"""Behind every position."""


def paged_attention(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_dim], last stride 1
    keys: KvPool,
    values: KvPool,
    layer: int,
    table: StepTable,
    partials: Partials,
    tile: TileShape,
    *,
    scale: float,
    window: AttentionWindow | None = None,
    num_programs: int | None = None,
) -> None:
    """Write each item's result for each of its tokens to `partials`.

    The query at position p reads row r if r <= p and `window` lets it; scores are multiplied by `scale`.
    Reads no row that no query of the tile may see. Fixed scales of values are left to the merge.
    Requires tasks cut for `tile.num_queries`. One launch of `num_programs` programs, by default as many as
    fill the device; the number changes no bit.
    """
    num_kv_heads = keys.rows.shape[2]
    head_dim = query.shape[2]
    key_rows, value_rows = keys.rows[layer], values.rows[layer]
    key_scales, value_scales = (
        None if pool.scales is None else pool.scales[layer] for pool in (keys, values)
    )
    scale_strides = next((s.stride() for s in (key_scales, value_scales) if s is not None), (0, 0))
    key_fixed_scale = None if keys.fixed_scale is None else keys.fixed_scale[layer]
    limit = max_programs(query.device) if num_programs is None else num_programs
    paged_attention_kernel[(min(limit, len(table.tasks) * num_kv_heads),)](
        query,
        key_rows,
        value_rows,
        key_rows if key_scales is None else key_scales,
        value_rows if value_scales is None else value_scales,
        key_rows if key_fixed_scale is None else key_fixed_scale,
        table.num_tasks,
        table.tasks,
        table.block_ids,
        table.positions,
        partials.output,
        partials.peak,
        partials.total,
        scale * math.log2(math.e),
        query.stride(0),
        query.stride(1),
        key_rows.stride(0),
        key_rows.stride(1),
        *scale_strides,
        num_kv_heads,
        HAS_KEY_SCALES=key_scales is not None,
        HAS_VALUE_SCALES=value_scales is not None,
        HAS_FIXED_KEY_SCALE=key_fixed_scale is not None,
        IS_PACKED=key_rows.dtype == torch.uint8,
        WINDOW=0 if window is None else window.size,
        NUM_SINKS=0 if window is None else window.num_sinks,
        GROUP_SIZE=query.shape[1] // num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=table.block_size,
        CHUNK=CHUNK_ROWS,
        TILE_QUERIES=tile.num_queries,
        TILE_ROWS=tile.num_rows,
        TILE_DIM=tile_dim(head_dim),
        DOT_DTYPE=dot_dtype(key_rows.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


@triton.jit
def load_rows(
    rows_ptr,  # of one head: [num_slots, HEAD_DIM], stride given by offsets, last 1; packed, HEAD_DIM / 2
    offsets,  # [TILE_ROWS] int64
    is_row,  # [TILE_ROWS]
    IS_PACKED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
    DTYPE: tl.constexpr,
):  # [TILE_ROWS, TILE_DIM]
    """Elements or codes of some rows; 0 where there is none."""
    if IS_PACKED:  # element 2i in the low nibble of byte i, 2i + 1 in the high one, each plus 8
        pairs = tl.arange(0, TILE_DIM // 2)
        nibbles = tl.load(
            rows_ptr + offsets[:, None] + pairs[None, :],
            mask=is_row[:, None] & (pairs < HEAD_DIM // 2)[None, :],
            other=0x88,
        ).to(tl.int32)
        rows = tl.interleave((nibbles & 15) - 8, (nibbles >> 4) - 8)
    else:
        dims = tl.arange(0, TILE_DIM)
        rows = tl.load(
            rows_ptr + offsets[:, None] + dims[None, :],
            mask=is_row[:, None] & (dims < HEAD_DIM)[None, :],
            other=0,
        )
    return rows.to(DTYPE)


@triton.jit
def paged_attention_kernel(
    query_ptr,  # [num_tokens, num_query_heads, HEAD_DIM], strides given, last 1
    keys_ptr,  # [num_slots, num_kv_heads, HEAD_DIM], strides given, last 1; packed, HEAD_DIM / 2
    values_ptr,  # as keys
    key_scales_ptr,  # [num_slots, num_kv_heads] float16, strides given; unread without HAS_KEY_SCALES
    value_scales_ptr,  # as key_scales
    fixed_key_scale_ptr,  # [num_kv_heads, HEAD_DIM] float32; unread without HAS_FIXED_KEY_SCALE
    num_tasks_ptr,  # [1] int32
    tasks_ptr,  # [num_tasks, NUM_TASK_FIELDS] int32
    block_ids_ptr,  # [num_block_ids] int32
    positions_ptr,  # [num_tokens] int32
    partial_output_ptr,  # [num_partials, num_query_heads, HEAD_DIM] float32
    partial_peak_ptr,  # [num_partials, num_query_heads] float32
    partial_total_ptr,  # [num_partials, num_query_heads] float32
    scale,  # of scores, times log2(e): exponentials are powers of two
    query_token_stride,
    query_head_stride,
    slot_stride,
    head_stride,
    scale_slot_stride,
    scale_head_stride,
    num_kv_heads,
    HAS_KEY_SCALES: tl.constexpr,
    HAS_VALUE_SCALES: tl.constexpr,
    HAS_FIXED_KEY_SCALE: tl.constexpr,
    IS_PACKED: tl.constexpr,
    WINDOW: tl.constexpr,  # rows that a query reads, its own included; 0: all
    NUM_SINKS: tl.constexpr,  # first rows that it reads besides
    GROUP_SIZE: tl.constexpr,  # query heads of a KV head
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,  # slots of a block
    CHUNK: tl.constexpr,  # rows that are summed before they are folded into the rest
    TILE_QUERIES: tl.constexpr,  # query rows of a task
    TILE_ROWS: tl.constexpr,  # KV rows of a step
    TILE_DIM: tl.constexpr,  # HEAD_DIM, rounded up to a power of two
    DOT_DTYPE: tl.constexpr,  # of the products' operands; sums are float32
):
    """Tiles of items' queries read the items' rows, each for one KV head.

    Grid: any number of programs; task and head n is the work of program n % num_programs, and how many there
    are is read from memory, so that one recorded launch serves any plan. A query row is one query head of
    one token: row r of an item is head r % GROUP_SIZE of token r // GROUP_SIZE, so any group size fills the
    tile. Steps begin at multiples of TILE_ROWS in the sequence, not in the item, and chunks at multiples of
    CHUNK: the same rows are summed in the same order whatever the items are.
    """
    num_pairs = tl.load(num_tasks_ptr) * num_kv_heads
    for pair in range(tl.program_id(0), num_pairs, tl.num_programs(0)):
        kv_head = pair % num_kv_heads
        task_ptr = tasks_ptr + (pair // num_kv_heads) * NUM_TASK_FIELDS
        first_block = tl.load(task_ptr)  # the entry of block_ids that the run begins in
        first_position = tl.load(task_ptr + 1)  # of the run
        num_rows = tl.load(task_ptr + 2)
        first_token = tl.load(task_ptr + 3)  # of those that read the run
        first_partial = tl.load(task_ptr + 4)  # of the first token
        first_query = tl.load(task_ptr + 5)  # of this tile, in the run's
        num_queries = tl.load(task_ptr + 6)  # that read the run

        queries = first_query + tl.arange(0, TILE_QUERIES)
        is_query = queries < num_queries
        tokens = first_token + queries // GROUP_SIZE
        heads = kv_head * GROUP_SIZE + queries % GROUP_SIZE
        dims = tl.arange(0, TILE_DIM)
        is_dim = dims < HEAD_DIM
        query = tl.load(
            query_ptr
            + (tokens.to(tl.int64) * query_token_stride + heads * query_head_stride)[:, None]
            + dims[None, :],
            mask=is_query[:, None] & is_dim[None, :],
            other=0.0,
        )
        if HAS_FIXED_KEY_SCALE:
            fixed_scale = tl.load(fixed_key_scale_ptr + kv_head * HEAD_DIM + dims, mask=is_dim, other=0.0)
            query = query.to(tl.float32) * fixed_scale[None, :]
        query = query.to(DOT_DTYPE)

        # Rows [begin, end) are those that some query of the tile sees, and perhaps hidden ones between them.
        positions = tl.load(positions_ptr + tokens, mask=is_query, other=-1)
        end = tl.minimum(first_position + num_rows, tl.max(positions, axis=0) + 1)
        begin = first_position
        oldest = 0  # the first row of any query's window
        if WINDOW > 0:
            oldest = tl.min(tl.where(is_query, positions, FAR), axis=0) - (WINDOW - 1)
            begin = tl.where(first_position < NUM_SINKS, begin, tl.maximum(begin, oldest))
        rows_offset = kv_head.to(tl.int64) * head_stride
        scales_offset = kv_head.to(tl.int64) * scale_head_stride
        run_block_ids_ptr = block_ids_ptr + first_block - first_position // BLOCK_SIZE

        output = tl.zeros([TILE_QUERIES, TILE_DIM], tl.float32)
        peak = tl.full([TILE_QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([TILE_QUERIES], tl.float32)
        for chunk in range(begin // CHUNK * CHUNK, end, CHUNK):
            chunk_output = tl.zeros([TILE_QUERIES, TILE_DIM], tl.float32)
            chunk_peak = tl.full([TILE_QUERIES], float("-inf"), tl.float32)
            chunk_total = tl.zeros([TILE_QUERIES], tl.float32)
            for step in tl.static_range(CHUNK // TILE_ROWS):
                rows = chunk + step * TILE_ROWS + tl.arange(0, TILE_ROWS)
                # What no query sees may never have been written, or given back: it is not even loaded.
                is_row = (rows >= begin) & (rows < end)
                if WINDOW > 0:
                    is_row &= (rows >= oldest) | (rows < NUM_SINKS)
                block_ids = tl.load(run_block_ids_ptr + rows // BLOCK_SIZE, mask=is_row, other=0)
                slots = (
                    block_ids.to(tl.int64) * BLOCK_SIZE + rows % BLOCK_SIZE
                )  # times a stride, may pass 2**31
                offsets = rows_offset + slots * slot_stride
                scale_offsets = scales_offset + slots * scale_slot_stride

                key = load_rows(keys_ptr, offsets, is_row, IS_PACKED, HEAD_DIM, TILE_DIM, DOT_DTYPE)
                scores = tl.dot(query, tl.trans(key), input_precision="tf32x3") * scale
                if HAS_KEY_SCALES:
                    key_scales = tl.load(key_scales_ptr + scale_offsets, mask=is_row, other=0.0)
                    scores *= key_scales.to(tl.float32)[None, :]
                is_seen = is_row[None, :] & (rows[None, :] <= positions[:, None])
                if WINDOW > 0:
                    is_seen &= (rows[None, :] > positions[:, None] - WINDOW) | (rows < NUM_SINKS)[None, :]
                scores = tl.where(is_seen, scores, float("-inf"))

                step_peak = tl.max(scores, axis=1)
                new_peak = step_peak if step == 0 else tl.maximum(chunk_peak, step_peak)
                reference = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # no -inf may meet its like
                weights = tl.exp2(scores - reference[:, None])
                weight_sum = tl.sum(weights, axis=1)
                if HAS_VALUE_SCALES:
                    value_scales = tl.load(value_scales_ptr + scale_offsets, mask=is_row, other=0.0)
                    weights *= value_scales.to(tl.float32)[None, :]
                weights = weights.to(DOT_DTYPE)
                value = load_rows(values_ptr, offsets, is_row, IS_PACKED, HEAD_DIM, TILE_DIM, DOT_DTYPE)
                if step == 0:
                    chunk_output = tl.dot(weights, value, input_precision="tf32x3")
                    chunk_total = weight_sum
                else:
                    share = tl.exp2(chunk_peak - reference)
                    chunk_output *= share[:, None]
                    chunk_output = tl.dot(weights, value, acc=chunk_output, input_precision="tf32x3")
                    chunk_total = chunk_total * share + weight_sum
                chunk_peak = new_peak
            output, peak, total = fold(output, peak, total, chunk_output, chunk_peak, chunk_total)

        partials = first_partial + queries // GROUP_SIZE
        results = (
            partials.to(tl.int64) * (num_kv_heads * GROUP_SIZE) + heads
        )  # times a head size, may pass 2**31
        tl.store(partial_peak_ptr + results, peak, mask=is_query)
        tl.store(partial_total_ptr + results, total, mask=is_query)
        tl.store(
            partial_output_ptr + results[:, None] * HEAD_DIM + dims[None, :],
            output,
            mask=is_query[:, None] & is_dim[None, :],
        )
