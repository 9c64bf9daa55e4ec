"""What depends on how Triton runs here: compiled for a GPU, or interpreted on the CPU for tests."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

IS_INTERPRETED = triton.knobs.runtime.interpret
"""Whether TRITON_INTERPRET was set when the kernels were imported."""

PROGRAMS_PER_PROCESSOR = 4
"""Programs that a launch gives each of a GPU's processors: enough to hide one's latency behind another."""

_TRITON_DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def dot_dtype(stored: torch.dtype) -> tl.dtype:
    """The type that a product's operands have, over rows stored in a type.

    Their own; for codes bfloat16, in which each of them is exact and a scale as small as may be keeps its
    digits. Interpreted, bfloat16 products are silently wrong, so they are taken in float32 there.
    """
    dtype = stored if stored.is_floating_point else torch.bfloat16
    return tl.float32 if IS_INTERPRETED and dtype == torch.bfloat16 else _TRITON_DTYPES[dtype]


def tile_dim(head_dim: int) -> int:
    """Elements of a head in a tile: a power of two that matrix instructions take."""
    return max(16, 1 << (head_dim - 1).bit_length())


def max_programs(device: torch.device) -> int:
    """Programs that fill the device; more would wait for their turn."""
    if device.type != "cuda":
        return PROGRAMS_PER_PROCESSOR
    return PROGRAMS_PER_PROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count
