"""The formats that the weights of products can be kept in."""

from __future__ import annotations

from typing import Literal

import torch

WeightFormat = Literal["fp32", "bf16", "int8"]


def quantize_channels(
    weight: torch.Tensor,  # [out_features, in_features] float32
) -> tuple[torch.Tensor, torch.Tensor]:  # [out_features, in_features] int16, [out_features] float32
    """Values of -127 to 127 and a scale for each output feature: weight is about values * scale.

    Symmetric, the scale being the largest magnitude over 127; a row of zeros has scale 0.
    """
    scales = weight.abs().amax(dim=1) / 127
    divisors = torch.where(scales > 0, scales, 1.0)
    values = (weight / divisors[:, None]).round_().clamp_(-127, 127)
    return values.to(torch.int16), scales


def rounded_weight(
    weight: torch.Tensor,  # [out_features, in_features] float32
    weight_format: WeightFormat,
) -> torch.Tensor:  # the same shape, float32
    """The values that the format can hold, for products that cannot read the format itself."""
    if weight_format == "bf16":
        return weight.bfloat16().float()
    if weight_format == "int8":
        values, scales = quantize_channels(weight)
        return values * scales[:, None]
    return weight
