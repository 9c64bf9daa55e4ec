"""The decoder: plain functions over weights, attention left to the engine."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from prefixcache_worker.model.config import ModelConfig
from prefixcache_worker.model.linear import Weight, linear
from prefixcache_worker.model.model import AttentionShape, ForwardBatch, StepAttention
from prefixcache_worker.model.native_linear import PackedWeight
from prefixcache_worker.model.native_operators import prepare_native_operators
from prefixcache_worker.model.operators import gelu_and_multiply, rms_norm, rotate, silu_and_multiply
from prefixcache_worker.model.rope import Rope, RotaryTable, Rotation


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer's tensors. Projections that read the same input are stacked, so that each is one product.

    The projections are packed by `pack_weight`.
    """

    attention_norm: torch.Tensor  # [hidden_size]
    qkv: Weight  # [(num_query_heads + 2 * num_kv_heads) * head_dim, hidden_size]
    qkv_bias: torch.Tensor | None = None  # [(num_query_heads + 2 * num_kv_heads) * head_dim]
    query_norm: torch.Tensor | None = None  # [head_dim]
    key_norm: torch.Tensor | None = None  # [head_dim]
    attention_output: Weight  # [hidden_size, num_query_heads * head_dim]
    attention_output_bias: torch.Tensor | None = None  # [hidden_size]
    attention_post_norm: torch.Tensor | None = None  # [hidden_size]
    mlp_norm: torch.Tensor  # [hidden_size]
    gate_up: Weight  # [2 * intermediate_size, hidden_size]
    gate_up_bias: torch.Tensor | None = None  # [2 * intermediate_size]
    down: Weight  # [hidden_size, intermediate_size]
    down_bias: torch.Tensor | None = None  # [hidden_size]
    mlp_post_norm: torch.Tensor | None = None  # [hidden_size]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """All tensors of a decoder. Q and K rows are in half-split rotary order, whatever the file had."""

    embedding: torch.Tensor  # [vocabulary_size, hidden_size], float32 or bfloat16
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor  # [hidden_size]
    output: Weight  # [vocabulary_size, hidden_size]; of the embedding when they are tied


class Decoder:
    """A llama-like decoder as a `Model`. Runs where its weights are; keeps no state between calls.

    Making the first one on a CPU builds the kernel of its operators if need be (seconds, once).
    """

    def __init__(self, config: ModelConfig, weights: DecoderWeights) -> None:
        self._config = config
        self._attention_shape = config.attention_shape
        self._weights = weights
        if weights.embedding.device.type == "cpu":
            prepare_native_operators()  # so that no request waits for a compiler

        def table(rope: Rope) -> RotaryTable:
            return RotaryTable(rope, num_positions=config.context_length, device=weights.embedding.device)

        self._rotary = table(config.rope)
        self._local_rotary = table(config.local_rope) if config.local_rope else self._rotary

    @property
    def attention_shape(self) -> AttentionShape:
        return self._attention_shape

    @property
    def vocabulary_size(self) -> int:
        return self._config.vocabulary_size

    @property
    def context_length(self) -> int:
        return self._config.context_length

    @property
    def weight_bytes(self) -> int:
        """What a step reads of the weights, however many tokens it has: all but the embedding's table."""
        layers = [getattr(layer, field.name) for layer in self._weights.layers for field in fields(layer)]
        read = [self._weights.output, self._weights.final_norm, *layers]
        return sum(
            weight.num_bytes if isinstance(weight, PackedWeight) else weight.nbytes
            for weight in read
            if weight is not None
        )

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, attention: StepAttention) -> torch.Tensor:
        """Logits of `batch.logit_rows`: [num_logit_rows, vocabulary_size], float32.

        Requires token ids inside the vocabulary and positions inside the context.
        """
        config, weights = self._config, self._weights
        eps = config.rms_norm_eps
        full = self._rotary.at(batch.positions)
        local = full if self._local_rotary is self._rotary else self._local_rotary.at(batch.positions)
        embedded = weights.embedding[batch.token_ids].float()
        hidden = embedded * config.embedding_scale  # [num_tokens, hidden_size]
        for index, layer in enumerate(weights.layers):
            rotation = local if self._attention_shape.window(index) else full
            normed = rms_norm(hidden, layer.attention_norm, eps)
            query, key, value = project_qkv(normed, layer, config, rotation)
            attended = attention.attend(index, query, key, value).flatten(1)
            output = project(attended, layer.attention_output, layer.attention_output_bias)
            hidden = hidden + norm_if_any(output, layer.attention_post_norm, eps)
            normed = rms_norm(hidden, layer.mlp_norm, eps)
            hidden = hidden + norm_if_any(mlp(normed, layer, config), layer.mlp_post_norm, eps)
        final = rms_norm(hidden[batch.logit_rows], weights.final_norm, eps)
        return linear(final, weights.output)


def project(inputs: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
    """Each row of `inputs` times `weight`, plus the bias if the model has one."""
    product = linear(inputs, weight)
    return product if bias is None else product + bias


def norm_if_any(inputs: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """`rms_norm` if the model has this norm, else the inputs themselves."""
    return inputs if weight is None else rms_norm(inputs, weight, eps)


def project_qkv(
    normed: torch.Tensor,  # [num_tokens, hidden_size]
    layer: LayerWeights,
    config: ModelConfig,
    rotation: Rotation,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rotated query, rotated key, and value: each [num_tokens, heads, head_dim]."""
    num_queries, num_keys = config.num_query_heads, config.num_kv_heads
    qkv = project(normed, layer.qkv, layer.qkv_bias)
    heads = qkv.view(-1, num_queries + 2 * num_keys, config.head_dim)
    query_key, value = heads[:, : num_queries + num_keys], heads[:, num_queries + num_keys :]
    if layer.query_norm is not None and layer.key_norm is not None:
        query = rms_norm(query_key[:, :num_queries], layer.query_norm, config.rms_norm_eps)
        key = rms_norm(query_key[:, num_queries:], layer.key_norm, config.rms_norm_eps)
        query_key = torch.cat((query, key), dim=1)
    rotated = rotate(query_key, rotation.cos, rotation.sin)
    return rotated[:, :num_queries], rotated[:, num_queries:], value


def mlp(normed: torch.Tensor, layer: LayerWeights, config: ModelConfig) -> torch.Tensor:
    """The gated MLP: [num_tokens, hidden_size] to the same shape."""
    gate_up = project(normed, layer.gate_up, layer.gate_up_bias)
    gated = silu_and_multiply(gate_up) if config.activation == "silu" else gelu_and_multiply(gate_up)
    return project(gated, layer.down, layer.down_bias)
