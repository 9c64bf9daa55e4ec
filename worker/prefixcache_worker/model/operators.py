"""What a decoder does between its products: each function works row by row."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  (the name every torch program gives it)


def rms_norm(inputs: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Scale the last dimension to a root mean square of 1, then by `weight`. Computed in float32."""
    normed = F.rms_norm(inputs.float(), (inputs.shape[-1],), eps=eps)
    return normed.to(inputs.dtype) * weight


def rotate(
    heads: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    cos: torch.Tensor,  # [num_tokens, 1, head_dim / 2]
    sin: torch.Tensor,  # [num_tokens, 1, head_dim / 2]
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim]
    """Rotate each pair (i, i + head_dim / 2) by its position's angle."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def silu_and_multiply(
    gate_up: torch.Tensor,  # [num_tokens, 2 * intermediate_size]: gates, then what they let through
) -> torch.Tensor:  # [num_tokens, intermediate_size]
    """The gate of SwiGLU (Shazeer 2020)."""
    gate, up = gate_up.chunk(2, dim=1)
    return F.silu(gate) * up


def gelu_and_multiply(
    gate_up: torch.Tensor,  # [num_tokens, 2 * intermediate_size]: gates, then what they let through
) -> torch.Tensor:  # [num_tokens, intermediate_size]
    """The gate of GeGLU (Shazeer 2020), with the tanh form of GELU (Hendrycks & Gimpel 2016)."""
    gate, up = gate_up.chunk(2, dim=1)
    return F.gelu(gate, approximate="tanh") * up
