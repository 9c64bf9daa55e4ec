"""Copy-on-write orders, executed on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from prefixcache import BlockCopy


def copy_blocks(tensors: Sequence[torch.Tensor], copies: Sequence[BlockCopy], block_size: int) -> None:
    """Copy the first `num_slots` rows of each source block onto its target, in every layer.

    `tensors` are the pool's, stored slot by slot: [num_layers, num_slots, num_kv_heads] or, with the last
    stride 1, [num_layers, num_slots, num_kv_heads, width]. One launch for each.
    Requires at least one copy, no block to be source and target at once, and none to be a target twice.
    """
    orders = torch.tensor(copies, dtype=torch.int32).to(tensors[0].device)  # [num_copies, 3]
    for tensor in tensors:
        num_layers, _, num_kv_heads = tensor.shape[:3]
        width = tensor.shape[3] if tensor.dim() == 4 else 1
        copy_blocks_kernel[(len(copies), num_layers, num_kv_heads)](
            tensor,
            orders,
            *tensor.stride()[:3],
            WIDTH=width,
            BLOCK_SIZE=block_size,
            TILE_SLOTS=triton.next_power_of_2(block_size),
            TILE_WIDTH=triton.next_power_of_2(width),
        )


@triton.jit
def copy_blocks_kernel(
    stored_ptr,  # [num_layers, num_slots, num_kv_heads, WIDTH], strides given, last 1
    orders_ptr,  # [num_copies, 3] int32: source, target, num_slots
    layer_stride,
    slot_stride,
    head_stride,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_SLOTS: tl.constexpr,  # BLOCK_SIZE, rounded up to a power of two
    TILE_WIDTH: tl.constexpr,  # WIDTH, rounded up to a power of two
):
    """Copy one head's rows of one block in one layer. Grid: (num_copies, num_layers, num_kv_heads)."""
    order_ptr = orders_ptr + tl.program_id(0) * 3
    source, target = tl.load(order_ptr).to(tl.int64), tl.load(order_ptr + 1).to(tl.int64)
    num_slots = tl.load(order_ptr + 2)
    plane = tl.program_id(1).to(tl.int64) * layer_stride + tl.program_id(2).to(tl.int64) * head_stride
    slots, elements = tl.arange(0, TILE_SLOTS), tl.arange(0, TILE_WIDTH)
    inside = (slots < num_slots)[:, None] & (elements < WIDTH)[None, :]
    offsets = plane + slots[:, None].to(tl.int64) * slot_stride + elements[None, :]
    from_block = offsets + source * BLOCK_SIZE * slot_stride  # int64: may pass 2**31
    to_block = offsets + target * BLOCK_SIZE * slot_stride
    tl.store(stored_ptr + to_block, tl.load(stored_ptr + from_block, mask=inside), mask=inside)
