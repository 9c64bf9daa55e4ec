"""Every format a KV pool can have, and fixed scales for those that need them."""

from __future__ import annotations

import torch

from prefixcache_worker.attention.kv_format import KvDtype, KvFormat, KvScales
from prefixcache_worker.attention.kv_store import FixedScales
from prefixcache_worker.model.model import AttentionShape

FORMATS = [KvFormat(dtype) for dtype in KvDtype if dtype.max_code is None] + [
    KvFormat(dtype, scales) for dtype in KvDtype if dtype.max_code is not None for scales in KvScales
]


def fixed_scales_of(kv_format: KvFormat, shape: AttentionShape, *, peak: float = 4.0) -> FixedScales:
    """Scales under which no element up to `peak` saturates, all different, the same in every call."""
    generator = torch.Generator().manual_seed(0)
    size = (shape.num_layers, shape.num_kv_heads, shape.head_dim)

    def scales() -> torch.Tensor:
        max_code = kv_format.dtype.max_code
        assert max_code is not None
        return (1 + torch.rand(size, generator=generator)) * peak / max_code

    return FixedScales(
        keys=scales() if kv_format.keys.has_fixed_scales else None,
        values=scales() if kv_format.values.has_fixed_scales else None,
    )
