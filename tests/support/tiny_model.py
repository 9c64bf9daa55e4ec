"""A decoder with fixed random weights, small enough to serve as an oracle in any test."""

from __future__ import annotations

import torch

from prefixcache_worker.model.config import ModelConfig
from prefixcache_worker.model.decoder import Decoder, DecoderWeights, LayerWeights
from prefixcache_worker.model.linear import Weight, pack_weight
from prefixcache_worker.model.model import AttentionWindow
from prefixcache_worker.model.rope import plain_rope
from prefixcache_worker.model.weight_format import WeightFormat


def tiny_decoder(
    seed: int = 1,
    *,
    num_layers: int = 2,
    vocabulary_size: int = 1000,
    num_query_heads: int = 6,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    context_length: int = 4096,
    windows: tuple[AttentionWindow | None, ...] = (),
    weight_format: WeightFormat = "fp32",
    device: str = "cpu",
) -> Decoder:
    """A float32 decoder whose logits depend on every earlier token. Equal arguments give equal weights."""
    hidden_size = num_query_heads * head_dim
    config = ModelConfig(
        architecture="llama",
        name="tiny",
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_query_heads=num_query_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocabulary_size=vocabulary_size,
        context_length=context_length,
        rms_norm_eps=1e-5,
        rope=plain_rope(10_000.0, head_dim),
        windows=windows,
        bos_token_id=1,
        eos_token_ids=(2,),
    )
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) / columns**0.5).to(device)

    def projection(rows: int, columns: int) -> Weight:
        return pack_weight(matrix(rows, columns), weight_format)

    def norm() -> torch.Tensor:
        return (1 + 0.1 * torch.randn(hidden_size, generator=generator)).to(device)

    layers = tuple(
        LayerWeights(
            attention_norm=norm(),
            qkv=projection((num_query_heads + 2 * num_kv_heads) * head_dim, hidden_size),
            attention_output=projection(hidden_size, hidden_size),
            mlp_norm=norm(),
            gate_up=projection(2 * config.intermediate_size, hidden_size),
            down=projection(hidden_size, config.intermediate_size),
        )
        for _ in range(num_layers)
    )
    weights = DecoderWeights(
        embedding=torch.randn(vocabulary_size, hidden_size, generator=generator).to(device),
        layers=layers,
        final_norm=norm(),
        output=pack_weight(4 * matrix(vocabulary_size, hidden_size), weight_format),
    )
    return Decoder(config, weights)
