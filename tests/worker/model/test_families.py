"""Every supported family against transformers, on random checkpoints behind our own loader."""

from __future__ import annotations

import random

import pytest
import torch
from support.dense_attention import DenseCache, dense_forward, dense_logits
from support.tiny_checkpoint import (
    VOCABULARY_SIZE,
    save_tiny_checkpoint,
    tiny_transformers_model,
    transformers_logits,
)

from prefixcache_worker.model.loader import load_model

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-4
WINDOW = 13


def rope(rope_type: str, **parameters) -> dict:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 500.0} | parameters}


YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 9_000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 200.0},
}
FAMILIES = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama one KV head": ("llama", {"num_key_value_heads": 1}),
    "llama all KV heads": ("llama", {"num_key_value_heads": 6}),
    "llama wide heads": ("llama", {"head_dim": 12}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "rope theta": ("llama", rope("default")),
    "rope linear": ("llama", rope("linear", factor=2.5)),
    "rope llama3": (
        "llama",
        {"head_dim": 16}
        | rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "rope yarn": ("llama", {"head_dim": 16} | rope("yarn", **YARN)),
    "rope yarn, original length by factor": ("llama", rope("yarn", factor=4.0)),
    "rope yarn, its own attention factor": ("llama", rope("yarn", **YARN, attention_factor=1.7)),
    "rope yarn, two weights": ("llama", rope("yarn", **YARN, mscale=1.2, mscale_all_dim=0.6)),
    "rope yarn, narrow and not rounded": (
        "llama",
        {"head_dim": 16} | rope("yarn", **YARN, beta_fast=8.0, beta_slow=2.0, truncate=False),
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral window": ("mistral", {"sliding_window": WINDOW, "head_dim": 12}),
    "mistral window of one": ("mistral", {"sliding_window": 1}),
    "qwen2": ("qwen2", {}),
    "qwen2 window off": ("qwen2", {"use_sliding_window": False, "sliding_window": WINDOW}),
    "qwen2 window from layer 1": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen2 layer types": (
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "qwen3": ("qwen3", {}),
    "qwen3 biases and window": (
        "qwen3",
        {
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 0,
        },
    ),
    "smollm2": ("llama", {"tie_word_embeddings": True} | rope("default", rope_theta=100_000.0)),
    "gemma3": (
        "gemma3_text",
        {
            "num_hidden_layers": 4,
            "sliding_window": WINDOW,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 24,
            "rope_parameters": GEMMA_ROPES,
        },
    ),
    "gemma3 layer types, untied, wide heads": (
        "gemma3_text",
        {
            "sliding_window": WINDOW,
            "layer_types": ["full_attention", "sliding_attention"],
            "head_dim": 12,
            "tie_word_embeddings": False,
        },
    ),
}


def prompt(num_tokens: int) -> list[int]:
    return random.Random(0).choices(range(VOCABULARY_SIZE), k=num_tokens)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers_in_prefill_and_token_by_token(family, tmp_path):
    model_type, changes = FAMILIES[family]
    reference = tiny_transformers_model(model_type, **changes)
    model = load_model(str(save_tiny_checkpoint(tmp_path, reference))).model
    for num_tokens in (1, 2, WINDOW, WINDOW + 1, 3 * WINDOW + 1):
        token_ids = prompt(num_tokens)
        expected = transformers_logits(reference, token_ids)
        torch.testing.assert_close(dense_logits(model, token_ids), expected, atol=TOLERANCE, rtol=0)
    cache = DenseCache(model.attention_shape)
    one_by_one = torch.cat([dense_forward(model, [cache], [[token_id]], [1]) for token_id in token_ids])
    torch.testing.assert_close(one_by_one, expected, atol=TOLERANCE, rtol=0)
