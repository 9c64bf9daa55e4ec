"""Scales that are constants of a pool, found by running fixed prompts through the model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from prefixcache_worker.attention.kv_format import KvDtype, KvFormat, KvScales, RowFormat
from prefixcache_worker.attention.kv_store import FixedScales
from prefixcache_worker.attention.quantize import MIN_SCALE
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.model import AttentionShape, AttentionWindow, ForwardBatch, Model

MAX_PROMPT_TOKENS = 512
MARGINS = {KvDtype.INT8: 1.25, KvDtype.INT4: 1.0}
"""How far beyond the largest magnitude of the prompts the codes reach; what is larger saturates.

int4 has no codes to spare: there coarser steps for all rows cost more than a few saturated elements.
"""
CALIBRATION_TEXT = """\
The museum opens at nine, except on Mondays; children under twelve pay nothing. "Is that so?" she asked.
You are a careful assistant. Answer in one sentence, and say so when you do not know the answer.
What is the capital of Australia? The capital of Australia is Canberra, with about 470,000 inhabitants.
def area(radius: float) -> float:
    return 3.14159 * radius**2  # in square metres
{"id": 1024, "name": "valve", "tags": ["brass", "1/2 inch"], "price": 7.95, "in_stock": true}
1. Wash the beans. 2. Soak them over night. 3. Boil them for an hour, with salt, garlic and bay leaves.
Der Zug nach Basel fährt um 7:42 Uhr ab. Le musée est fermé le lundi. El tren sale a las ocho.
"""
"""Ordinary text reaches magnitudes that tokens without any order do not, and the other way round."""


def calibrate(
    model: Model,
    kv_format: KvFormat,
    *,
    text_ids: Sequence[int] = (),
    device: torch.device | str = "cpu",
) -> FixedScales:
    """The fixed scales of a format for a model, or none where it has none.

    `text_ids` is CALIBRATION_TEXT in the model's own tokens, where it has a tokenizer. The scales depend on
    the model and the format alone: so do the bytes of a row, which can be shared. Cost: a prefill of some
    hundred tokens. Raises ConfigError when the model's keys or values are not finite.
    """
    if not (kv_format.keys.has_fixed_scales or kv_format.values.has_fixed_scales):
        return FixedScales()
    attention = CalibrationAttention(model.attention_shape)
    for token_ids in (spread_ids(model), torch.tensor(text_ids, dtype=torch.int64)):
        num_tokens = min(len(token_ids), MAX_PROMPT_TOKENS, model.context_length)
        if num_tokens > 0:
            model.forward(_whole_prompt(token_ids[:num_tokens].to(device)), attention)
    return FixedScales(
        keys=_fixed_scale("keys", attention.peak_keys, kv_format.keys),
        values=_fixed_scale("values", attention.peak_values, kv_format.values),
    )


def _whole_prompt(token_ids: torch.Tensor) -> ForwardBatch:
    num_tokens, device = len(token_ids), token_ids.device
    return ForwardBatch(
        token_ids=token_ids,
        positions=torch.arange(num_tokens, device=device),
        prompt_lengths=torch.full((num_tokens,), num_tokens, device=device),
        logit_rows=torch.tensor([num_tokens - 1], device=device),
    )


def spread_ids(model: Model) -> torch.Tensor:  # [num_tokens] int64
    """Tokens from all over the vocabulary in an order that looks random, always the same."""
    num_tokens = min(MAX_PROMPT_TOKENS, model.context_length)
    # Multiples of the golden ratio modulo 1 are spread evenly; 2654435769 is 2**32 over the golden ratio.
    spread = torch.arange(1, num_tokens + 1) * 2654435769 % 2**32
    return spread * model.vocabulary_size >> 32


class CalibrationAttention:
    """`StepAttention` of whole prompts without a pool, one after the other: notes the largest magnitudes."""

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        size = (shape.num_layers, shape.num_kv_heads, shape.head_dim)
        self.peak_keys = torch.zeros(size)
        self.peak_values = torch.zeros(size)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,  # [num_tokens, num_query_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    ) -> torch.Tensor:  # [num_tokens, num_query_heads, head_dim]
        """See `StepAttention.attend`."""
        for peaks, rows in ((self.peak_keys, key), (self.peak_values, value)):
            peaks[layer] = torch.maximum(peaks[layer], rows.abs().amax(0).float().cpu())
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
    peaks: torch.Tensor,  # [num_layers, num_kv_heads, head_dim]
    row_format: RowFormat,
) -> torch.Tensor | None:  # [num_layers, num_kv_heads, head_dim] float32
    scales, max_code = row_format.scales, row_format.dtype.max_code
    if scales is None or max_code is None or not row_format.has_fixed_scales:
        return None
    for layer, peak in enumerate(peaks):
        if not peak.isfinite().all():
            raise ConfigError(
                f"--kv-scales {scales.value}: the {kind} of layer {layer} are not finite when the model "
                "reads the calibration text, so no scale fits them; check the checkpoint"
            )
    match scales:
        case KvScales.HEAD:
            peaks = peaks.amax(2, keepdim=True).expand_as(peaks)
        case KvScales.TENSOR:
            peaks = peaks.amax((1, 2), keepdim=True).expand_as(peaks)
    return (peaks * (MARGINS[row_format.dtype] / max_code)).clamp(min=MIN_SCALE)
