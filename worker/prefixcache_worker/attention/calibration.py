"""Scales that are constants of a pool, found by running one fixed prompt through the model."""

from __future__ import annotations

import torch

from prefixcache_worker.attention.kv_format import KvFormat, KvScales, RowFormat
from prefixcache_worker.attention.kv_store import FixedScales
from prefixcache_worker.attention.quantize import MIN_SCALE
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.model import AttentionShape, AttentionWindow, ForwardBatch, Model

MAX_PROMPT_TOKENS = 512
MARGIN = 1.25
"""How far beyond the largest magnitude of the calibration prompt the codes reach; more saturates."""


def calibrate(model: Model, kv_format: KvFormat, *, device: torch.device | str = "cpu") -> FixedScales:
    """The fixed scales of a format for a model, or none where it has none. Cost: one prefill.

    They depend on the model and the format alone: so do the bytes of a row, which can be shared.
    Raises ConfigError when the model's keys or values are not finite.
    """
    if not (kv_format.keys.has_fixed_scales or kv_format.values.has_fixed_scales):
        return FixedScales()
    attention = CalibrationAttention(model.attention_shape)
    token_ids = calibration_prompt(model)
    num_tokens = len(token_ids)
    model.forward(
        ForwardBatch(
            token_ids=token_ids.to(device),
            positions=torch.arange(num_tokens, device=device),
            prompt_lengths=torch.full((num_tokens,), num_tokens, device=device),
            logit_rows=torch.tensor([num_tokens - 1], device=device),
        ),
        attention,
    )
    return FixedScales(
        keys=_fixed_scale("keys", attention.peak_keys, kv_format.keys),
        values=_fixed_scale("values", attention.peak_values, kv_format.values),
    )


def calibration_prompt(model: Model) -> torch.Tensor:  # [num_tokens] int64
    """Tokens from all over the vocabulary in an order that looks random, always the same."""
    num_tokens = min(MAX_PROMPT_TOKENS, model.context_length)
    # Multiples of the golden ratio modulo 1 are spread evenly; 2654435769 is 2**32 over the golden ratio.
    spread = torch.arange(1, num_tokens + 1) * 2654435769 % 2**32
    return spread * model.vocabulary_size >> 32


class CalibrationAttention:
    """`StepAttention` of one whole prompt without a pool: notes the largest magnitudes on the way."""

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self.peak_keys: list[torch.Tensor] = []  # one for each layer: [num_kv_heads, head_dim]
        self.peak_values: list[torch.Tensor] = []

    def attend(
        self,
        layer: int,
        query: torch.Tensor,  # [num_tokens, num_query_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    ) -> torch.Tensor:  # [num_tokens, num_query_heads, head_dim]
        """See `StepAttention.attend`."""
        self.peak_keys.append(key.float().abs().amax(0))
        self.peak_values.append(value.float().abs().amax(0))
        return torch.nn.functional.scaled_dot_product_attention(
            query.transpose(0, 1),
            key.transpose(0, 1),
            value.transpose(0, 1),
            attn_mask=_visible(len(query), self._shape.window(layer), query.device),
            scale=self._shape.scale,
            enable_gqa=True,
        ).transpose(0, 1)


def _visible(
    num_tokens: int, window: AttentionWindow | None, device: torch.device
) -> torch.Tensor:  # [num_tokens, num_tokens] bool
    """Which row each query of a whole prompt reads."""
    positions = torch.arange(num_tokens, device=device)
    distance = positions[:, None] - positions
    visible = distance >= 0
    if window is not None:
        visible &= (distance < window.size) | (positions < window.num_sinks)
    return visible


def _fixed_scale(
    kind: str,
    peaks: list[torch.Tensor],  # one for each layer: [num_kv_heads, head_dim]
    row_format: RowFormat,
) -> torch.Tensor | None:  # [num_layers, num_kv_heads, head_dim] float32
    scales, max_code = row_format.scales, row_format.dtype.max_code
    if scales is None or max_code is None or not row_format.has_fixed_scales:
        return None
    for layer, peak in enumerate(peaks):
        if not peak.isfinite().all():
            raise ConfigError(
                f"--kv-scales {scales.value}: the {kind} of layer {layer} are not finite when the "
                "model reads the calibration prompt, so no scale fits them; check the checkpoint"
            )
    stacked = torch.stack(peaks)  # [num_layers, num_kv_heads, head_dim]
    match scales:
        case KvScales.HEAD:
            stacked = stacked.amax(2, keepdim=True).expand_as(stacked)
        case KvScales.TENSOR:
            stacked = stacked.amax((1, 2), keepdim=True).expand_as(stacked)
    return (stacked * (MARGIN / max_code)).clamp(min=MIN_SCALE).contiguous()
