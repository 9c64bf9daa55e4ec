"""Partial results, and the one way in which two of them become one."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from prefixcache_worker.attention.triton.runtime import tile_dim
from prefixcache_worker.attention.triton.step_table import StepTable


class Partials(NamedTuple):
    """What each item found for each of its tokens, to be merged.

    A part of a softmax over disjoint rows: sums of exponentials of (score - peak), as powers of two. A part
    without rows is (0, -inf, 0).
    """

    output: torch.Tensor  # [num_partials, num_query_heads, head_dim] float32, rows weighted and summed
    peak: torch.Tensor  # [num_partials, num_query_heads] float32, largest score times log2(e)
    total: torch.Tensor  # [num_partials, num_query_heads] float32, the weights' sum

    @staticmethod
    def empty(num_partials: int, num_query_heads: int, head_dim: int, device: torch.device | str) -> Partials:
        """Room for so many, unwritten."""
        size = (num_partials, num_query_heads)
        return Partials(
            torch.empty(*size, head_dim, device=device),
            torch.empty(size, device=device),
            torch.empty(size, device=device),
        )


def merge_partials(
    partials: Partials,
    table: StepTable,
    output: torch.Tensor,  # [num_tokens, num_query_heads, head_dim], contiguous
    value_scale: torch.Tensor | None = None,  # [num_kv_heads, head_dim] float32, contiguous
) -> None:
    """Combine each token's partial results, and multiply by `value_scale`. A token without any gets 0.

    They are folded in position order, those of a segment first and then the segments: the same sums as
    where one item covers the whole segment. One launch.
    """
    num_tokens, num_query_heads, head_dim = output.shape
    merge_partials_kernel[(num_tokens, num_query_heads)](
        partials.output,
        partials.peak,
        partials.total,
        table.first_partials,
        table.partial_ids,
        table.segments,
        output if value_scale is None else value_scale,
        output,
        GROUP_SIZE=1 if value_scale is None else num_query_heads // len(value_scale),
        HAS_VALUE_SCALE=value_scale is not None,
        HEAD_DIM=head_dim,
        TILE_DIM=tile_dim(head_dim),
        num_warps=1,
    )


@triton.jit
def fold(output, peak, total, next_output, next_peak, next_total):
    """One part of a softmax and the next as one. (0, -inf, 0) on either side changes no bit of the other.

    Shapes: [rows, dims], [rows], [rows], or without rows.
    """
    new_peak = tl.maximum(peak, next_peak)
    reference = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # so that no -inf meets its like
    share, next_share = tl.exp2(peak - reference), tl.exp2(next_peak - reference)
    new_total = total * share + next_total * next_share
    if len(output.shape) == 2:
        share, next_share = share[:, None], next_share[:, None]
    return output * share + next_output * next_share, new_peak, new_total


@triton.jit
def merge_partials_kernel(
    partial_output_ptr,  # [num_partials, num_query_heads, HEAD_DIM] float32
    partial_peak_ptr,  # [num_partials, num_query_heads] float32
    partial_total_ptr,  # [num_partials, num_query_heads] float32
    first_partials_ptr,  # [num_tokens + 1] int32
    partial_ids_ptr,  # [num_partials] int32
    segments_ptr,  # [num_partials] int32
    value_scale_ptr,  # [num_kv_heads, HEAD_DIM] float32; unread without HAS_VALUE_SCALE
    output_ptr,  # [num_tokens, num_query_heads, HEAD_DIM]
    GROUP_SIZE: tl.constexpr,  # query heads of a KV head
    HAS_VALUE_SCALE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,  # HEAD_DIM, rounded up to a power of two
):
    """Fold one token's partial results of one head. Grid: (num_tokens, num_query_heads)."""
    token, head, num_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    dims = tl.arange(0, TILE_DIM)
    is_dim = dims < HEAD_DIM
    first, end = tl.load(first_partials_ptr + token), tl.load(first_partials_ptr + token + 1)
    output, peak, total = tl.zeros([TILE_DIM], tl.float32), float("-inf"), 0.0
    of_segment, segment_peak, segment_total = tl.zeros([TILE_DIM], tl.float32), float("-inf"), 0.0
    segment = -1
    for entry in range(first, end):
        here = tl.load(segments_ptr + entry)
        partial = tl.load(partial_ids_ptr + entry).to(tl.int64)  # times a row's size, may pass 2**31
        row = partial * num_heads + head
        part = tl.load(partial_output_ptr + row * HEAD_DIM + dims, mask=is_dim, other=0.0)
        part_peak, part_total = tl.load(partial_peak_ptr + row), tl.load(partial_total_ptr + row)
        if here != segment:
            output, peak, total = fold(output, peak, total, of_segment, segment_peak, segment_total)
            of_segment, segment_peak, segment_total = part, part_peak, part_total
            segment = here
        else:
            of_segment, segment_peak, segment_total = fold(
                of_segment, segment_peak, segment_total, part, part_peak, part_total
            )
    output, peak, total = fold(output, peak, total, of_segment, segment_peak, segment_total)
    output = output / tl.where(total > 0, total, 1.0)
    if HAS_VALUE_SCALE:
        output *= tl.load(value_scale_ptr + head // GROUP_SIZE * HEAD_DIM + dims, mask=is_dim, other=0.0)
    target = (token.to(tl.int64) * num_heads + head) * HEAD_DIM
    tl.store(output_ptr + target + dims, output.to(output_ptr.dtype.element_ty), mask=is_dim)
