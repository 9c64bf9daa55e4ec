"""The arithmetic of codes and scales. Each head of each row is on its own: neighbours change no bit."""

from __future__ import annotations

import torch

from prefixcache_worker.attention.kv_format import SCALE_DTYPE

MIN_SCALE = 2.0**-16
"""Below it float16 is too coarse for a scale, so smaller rows share it. Zero rows have codes of zero."""
MAX_SCALE = torch.finfo(SCALE_DTYPE).max


def row_scales(
    rows: torch.Tensor,  # [..., head_dim] float32
    max_code: int,
) -> torch.Tensor:  # [...] float16
    """Symmetric scales of each head of each row: its largest magnitude over the largest code.

    NaN where the row is not finite: that is somebody's bug and must stay visible.
    """
    peaks = rows.abs().amax(-1)
    scales = (peaks / max_code).clamp_(MIN_SCALE, MAX_SCALE)  # which lets NaN through
    return scales.masked_fill_(peaks == torch.inf, torch.nan).to(SCALE_DTYPE)


def encode(
    rows: torch.Tensor,  # [..., head_dim] float32
    scales: torch.Tensor,  # float32, broadcast against rows: as they will be read, already rounded
    max_code: int,
) -> torch.Tensor:  # [..., head_dim] int8
    """The nearest codes, saturating: |row - code * scale| <= scale / 2 up to a magnitude of
    (max_code + 1/2) * scale. Arbitrary where the scale is NaN."""
    return (rows / scales).round_().clamp_(-max_code, max_code).to(torch.int8)


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:  # [..., n] int8 -> [..., n / 2] uint8
    """Codes -7 to 7 two to a byte, each plus 8: element 2i in the low nibble, 2i + 1 in the high one."""
    nibbles = (codes + 8).view(torch.uint8)
    return nibbles[..., 0::2] | nibbles[..., 1::2] << 4


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:  # [..., n / 2] uint8 -> [..., n] int8
    """Undo `pack_nibbles`."""
    nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
    return nibbles.view(torch.int8) - 8
