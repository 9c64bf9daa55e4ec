"""What a decoder does between its products: each function works row by row.

Float32 on a CPU goes to a compiled kernel where that can be had; what follows it is for all the rest.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  (the name every torch program gives it)

from prefixcache_worker.model import native_operators


def rms_norm(inputs: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Scale the last dimension to a root mean square of 1, then by `weight`. Computed in float32."""
    if native_operators.takes(inputs):
        return native_operators.rms_norm(inputs, weight, eps)
    normed = F.rms_norm(inputs.float(), (inputs.shape[-1],), eps=eps)
    return normed.to(inputs.dtype) * weight


def rotate(
    heads: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    cos: torch.Tensor,  # [num_tokens, 1, head_dim / 2]
    sin: torch.Tensor,  # [num_tokens, 1, head_dim / 2]
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim]
    """Rotate each pair (i, i + head_dim / 2) by its position's angle."""
    if native_operators.takes(heads):
        return native_operators.rotate(heads, cos, sin)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def silu_and_multiply(
    gate_up: torch.Tensor,  # [num_tokens, 2 * intermediate_size]: gates, then what they let through
) -> torch.Tensor:  # [num_tokens, intermediate_size]
    """The gate of SwiGLU (Shazeer 2020)."""
    if native_operators.takes(gate_up):
        return native_operators.silu_and_multiply(gate_up)
    gate, up = gate_up.chunk(2, dim=1)
    return F.silu(gate) * up


def gelu_and_multiply(
    gate_up: torch.Tensor,  # [num_tokens, 2 * intermediate_size]: gates, then what they let through
) -> torch.Tensor:  # [num_tokens, intermediate_size]
    """The gate of GeGLU (Shazeer 2020), with the tanh form of GELU (Hendrycks & Gimpel 2016)."""
    if native_operators.takes(gate_up):
        return native_operators.gelu_and_multiply(gate_up)
    gate, up = gate_up.chunk(2, dim=1)
    return F.gelu(gate, approximate="tanh") * up
