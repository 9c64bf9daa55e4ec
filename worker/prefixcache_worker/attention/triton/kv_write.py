"""New rows into the pool, in its own format."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from prefixcache_worker.attention.kv_pool import KvPool
from prefixcache_worker.attention.quantize import MAX_SCALE, MIN_SCALE
from prefixcache_worker.attention.triton.runtime import tile_dim


def write_rows(
    pool: KvPool,
    layer: int,
    slots: torch.Tensor,  # [num_tokens] int32, none twice; -1: the row is dropped
    rows: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim], last stride 1
) -> None:
    """Store one layer's new rows, as `KvPool.write` does and with the same bits. One launch.

    A row that is not finite is not noticed where the scales are constants: that would cost a wait.
    """
    num_tokens, num_kv_heads, head_dim = rows.shape
    stored = pool.rows[layer]
    scales = None if pool.scales is None else pool.scales[layer]
    fixed_scale = None if pool.fixed_scale is None else pool.fixed_scale[layer]
    write_rows_kernel[(num_tokens, num_kv_heads)](
        rows,
        slots,
        stored,
        next((s for s in (scales, fixed_scale) if s is not None), stored),
        rows.stride(0),
        rows.stride(1),
        stored.stride(0),
        stored.stride(1),
        *((0, 0) if scales is None else scales.stride()),
        MAX_CODE=pool.format.dtype.max_code or 0,
        HAS_ROW_SCALES=scales is not None,
        IS_PACKED=stored.dtype == torch.uint8,
        MIN_SCALE=MIN_SCALE,
        MAX_SCALE=MAX_SCALE,
        HEAD_DIM=head_dim,
        TILE_DIM=tile_dim(head_dim),
        num_warps=1,
    )


@triton.jit
def write_rows_kernel(
    rows_ptr,  # [num_tokens, num_kv_heads, HEAD_DIM], strides given, last 1
    slots_ptr,  # [num_tokens] int32
    stored_ptr,  # [num_slots, num_kv_heads, HEAD_DIM], strides given, last 1; packed, HEAD_DIM / 2
    scales_ptr,  # of rows: [num_slots, num_kv_heads] float16; constant: [num_kv_heads, HEAD_DIM] float32
    row_token_stride,
    row_head_stride,
    slot_stride,
    head_stride,
    scale_slot_stride,
    scale_head_stride,
    MAX_CODE: tl.constexpr,  # the largest code; 0: elements are stored as they are
    HAS_ROW_SCALES: tl.constexpr,
    IS_PACKED: tl.constexpr,
    MIN_SCALE: tl.constexpr,
    MAX_SCALE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,  # HEAD_DIM, rounded up to a power of two
):
    """Store one head's row of one token in the token's slot. Grid: (num_tokens, num_kv_heads)."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot < 0:
        return
    dims = tl.arange(0, TILE_DIM)
    is_dim = dims < HEAD_DIM
    source_ptr = rows_ptr + token * row_token_stride + head * row_head_stride
    target_ptr = stored_ptr + slot * slot_stride + head * head_stride
    row = tl.load(source_ptr + dims, mask=is_dim, other=0.0)
    if MAX_CODE == 0:
        tl.store(target_ptr + dims, row.to(stored_ptr.dtype.element_ty), mask=is_dim)
    else:
        row = row.to(tl.float32)
        if HAS_ROW_SCALES:
            largest = tl.max(tl.abs(row), axis=0)
            scale = tl.minimum(tl.maximum(tl.div_rn(largest, MAX_CODE * 1.0), MIN_SCALE), MAX_SCALE)
            scale += tl.sum(row * 0.0, axis=0)  # NaN where the row is not finite: that must stay visible
            stored_scale = scale.to(scales_ptr.dtype.element_ty)
            tl.store(scales_ptr + slot * scale_slot_stride + head * scale_head_stride, stored_scale)
            codes = encode(row, stored_scale.to(tl.float32) + tl.zeros([TILE_DIM], tl.float32), MAX_CODE)
        else:
            fixed_scale = tl.load(scales_ptr + head * HEAD_DIM + dims, mask=is_dim, other=1.0)
            codes = encode(row, fixed_scale, MAX_CODE)
        if IS_PACKED:
            low, high = tl.split(tl.reshape(codes + 8, (TILE_DIM // 2, 2)))
            pairs = tl.arange(0, TILE_DIM // 2)
            tl.store(target_ptr + pairs, (low | (high << 4)).to(tl.uint8), mask=pairs < HEAD_DIM // 2)
        else:
            tl.store(target_ptr + dims, codes.to(tl.int8), mask=is_dim)


@triton.jit
def encode(
    row,  # [TILE_DIM] float32
    scales,  # [TILE_DIM] float32
    MAX_CODE: tl.constexpr,
):  # [TILE_DIM] int32
    """The nearest codes, ties to even, saturating. Arbitrary where a quotient is NaN."""
    quotients = tl.minimum(tl.maximum(tl.div_rn(row, scales), -1.0 * MAX_CODE), 1.0 * MAX_CODE)
    quotients = tl.where(quotients == quotients, quotients, 0.0)
    shift = 12582912.0  # 1.5 * 2**23: float32 has no fractions there, so adding it rounds
    return ((quotients + shift) - shift).to(tl.int32)
