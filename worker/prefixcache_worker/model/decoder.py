"""The decoder: plain functions over weights, attention left to the engine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from prefixcache_worker.model.config import ModelConfig
from prefixcache_worker.model.linear import linear, pack_weight
from prefixcache_worker.model.model import AttentionShape, ForwardBatch, StepAttention
from prefixcache_worker.model.operators import rms_norm, rotate, silu_and_multiply


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer's tensors. Projections that read the same input are stacked, so that each is one product."""

    attention_norm: torch.Tensor  # [hidden_size]
    qkv: torch.Tensor  # [(num_query_heads + 2 * num_kv_heads) * head_dim, hidden_size]
    qkv_bias: torch.Tensor | None = None  # [(num_query_heads + 2 * num_kv_heads) * head_dim]
    query_norm: torch.Tensor | None = None  # [head_dim]
    key_norm: torch.Tensor | None = None  # [head_dim]
    attention_output: torch.Tensor  # [hidden_size, num_query_heads * head_dim]
    mlp_norm: torch.Tensor  # [hidden_size]
    gate_up: torch.Tensor  # [2 * intermediate_size, hidden_size]
    down: torch.Tensor  # [hidden_size, intermediate_size]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """All tensors of a decoder. Q and K rows are in half-split rotary order, whatever the file had."""

    embedding: torch.Tensor  # [vocabulary_size, hidden_size]
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor  # [hidden_size]
    output: torch.Tensor  # [vocabulary_size, hidden_size]; the embedding itself when they are tied


class Decoder:
    """A llama-like decoder as a `Model`. Runs where its weights are; keeps no state between calls."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights) -> None:
        """Packs the weights for the machine; the caller's own can be dropped."""
        self._config = config
        self._weights = _packed(weights)
        self._cos, self._sin = rope_tables(config, device=weights.embedding.device)

    @property
    def attention_shape(self) -> AttentionShape:
        return self._config.attention_shape

    @property
    def vocabulary_size(self) -> int:
        return self._config.vocabulary_size

    @property
    def context_length(self) -> int:
        return self._config.context_length

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, attention: StepAttention) -> torch.Tensor:
        """Logits of `batch.logit_rows`: [num_logit_rows, vocabulary_size], float32.

        Requires token ids inside the vocabulary and positions inside the context.
        """
        config, weights = self._config, self._weights
        cos = self._cos[batch.positions].unsqueeze(1)  # [num_tokens, 1, head_dim / 2]
        sin = self._sin[batch.positions].unsqueeze(1)
        hidden = weights.embedding[batch.token_ids]  # [num_tokens, hidden_size]
        for index, layer in enumerate(weights.layers):
            normed = rms_norm(hidden, layer.attention_norm, config.rms_norm_eps)
            query, key, value = project_qkv(normed, layer, config, cos, sin)
            attended = attention.attend(index, query, key, value).flatten(1)
            hidden = hidden + linear(attended, layer.attention_output)
            normed = rms_norm(hidden, layer.mlp_norm, config.rms_norm_eps)
            hidden = hidden + mlp(normed, layer)
        final = rms_norm(hidden[batch.logit_rows], weights.final_norm, config.rms_norm_eps)
        return linear(final, weights.output).float()


def _packed(weights: DecoderWeights) -> DecoderWeights:
    layers = tuple(
        replace(
            layer,
            qkv=pack_weight(layer.qkv),
            attention_output=pack_weight(layer.attention_output),
            gate_up=pack_weight(layer.gate_up),
            down=pack_weight(layer.down),
        )
        for layer in weights.layers
    )
    return replace(weights, layers=layers, output=pack_weight(weights.output))


def rope_tables(config: ModelConfig, *, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of every position: two tensors [context_length, head_dim / 2], float32."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    positions = torch.arange(config.context_length, dtype=torch.float32)
    angles = torch.outer(positions, frequencies).to(device)
    return angles.cos(), angles.sin()


def project_qkv(
    normed: torch.Tensor,  # [num_tokens, hidden_size]
    layer: LayerWeights,
    config: ModelConfig,
    cos: torch.Tensor,  # [num_tokens, 1, head_dim / 2]
    sin: torch.Tensor,  # [num_tokens, 1, head_dim / 2]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rotated query, rotated key, and value: each [num_tokens, heads, head_dim]."""
    qkv = linear(normed, layer.qkv)
    if layer.qkv_bias is not None:
        qkv = qkv + layer.qkv_bias
    num_queries, num_keys = config.num_query_heads, config.num_kv_heads
    heads = qkv.view(-1, num_queries + 2 * num_keys, config.head_dim)
    query_key, value = heads[:, : num_queries + num_keys], heads[:, num_queries + num_keys :]
    if layer.query_norm is not None and layer.key_norm is not None:
        query = rms_norm(query_key[:, :num_queries], layer.query_norm, config.rms_norm_eps)
        key = rms_norm(query_key[:, num_queries:], layer.key_norm, config.rms_norm_eps)
        query_key = torch.cat((query, key), dim=1)
    rotated = rotate(query_key, cos, sin)
    return rotated[:, :num_queries], rotated[:, num_queries:], value


def mlp(normed: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
    """SwiGLU: [num_tokens, hidden_size] to the same shape."""
    return linear(silu_and_multiply(linear(normed, layer.gate_up)), layer.down)
