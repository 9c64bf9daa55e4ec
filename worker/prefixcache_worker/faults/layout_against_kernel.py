"""The pool is laid out token by token, and attention reads it layer by layer.

[slot][layer][head][element] is a good order for moving one token's rows, and the worst for reading many
tokens' rows of one layer: each lies a whole token away from the next, so that hardly two share a page.
"""

from __future__ import annotations

import torch

from prefixcache_worker.engine.engine import Engine


def plant(engine: Engine) -> None:
    """The pool's tensors keep what is in them, by other strides. For a moment one of them is there twice."""
    for pool in (engine.kv_store.keys, engine.kv_store.values):
        pool.rows = _token_first(pool.rows)
        if pool.scales is not None:
            pool.scales = _token_first(pool.scales)


def _token_first(tensor: torch.Tensor) -> torch.Tensor:  # [num_layers, num_slots, ...], as before
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)
