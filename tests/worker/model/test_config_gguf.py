"""GGUF files of every supported architecture against transformers, and what is refused in which words."""

from __future__ import annotations

import random

import pytest
import torch
from support.dense_attention import dense_logits
from support.tiny_checkpoint import (
    VOCABULARY_SIZE,
    save_tiny_gguf,
    tiny_transformers_model,
    transformers_logits,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.config_gguf import config_from_gguf
from prefixcache_worker.model.gguf_file import GgufFile
from prefixcache_worker.model.loader import load_model

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-4
WINDOW = 13


def rope(rope_type: str, **parameters) -> dict:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 500.0} | parameters}


GEMMA = {
    "num_hidden_layers": 7,
    "sliding_window": WINDOW,
    "query_pre_attn_scalar": 8,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 9_000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
GEMMA_KEYS = {
    "gemma3.attention.sliding_window": WINDOW,
    "gemma3.rope.freq_base": 9_000.0,
    "gemma3.rope.scaling.type": "linear",
    "gemma3.rope.scaling.factor": 8.0,
}
FILES = {
    "llama": ("llama", "llama", {}, {}),
    "llama tied": ("llama", "llama", {"tie_word_embeddings": True}, {}),
    "llama biases": ("llama", "llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "llama linear": (
        "llama",
        "llama",
        rope("linear", factor=2.0),
        {
            "llama.rope.freq_base": 500.0,
            "llama.rope.scaling.type": "linear",
            "llama.rope.scaling.factor": 2.0,
        },
    ),
    "llama bare factor": (
        "llama",
        "llama",
        rope("linear", factor=2.0),
        {"llama.rope.freq_base": 500.0, "llama.rope.scaling.factor": 2.0},
    ),
    "llama no scaling": (
        "llama",
        "llama",
        rope("default"),
        {"llama.rope.freq_base": 500.0, "llama.rope.scaling.type": "none"},
    ),
    "mistral": (
        "llama",
        "mistral",
        {"sliding_window": WINDOW, "head_dim": 12},
        {"llama.attention.sliding_window": WINDOW},
    ),
    "qwen2": ("qwen2", "qwen2", {}, {}),
    "qwen2 yarn": (
        "qwen2",
        "qwen2",
        {"head_dim": 16}
        | rope("yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=16.0, beta_slow=2.0),
        {
            "qwen2.rope.freq_base": 500.0,
            "qwen2.rope.scaling.type": "yarn",
            "qwen2.rope.scaling.factor": 4.0,
            "qwen2.rope.scaling.original_context_length": 64,
            "qwen2.rope.scaling.yarn_beta_fast": 16.0,
            "qwen2.rope.scaling.yarn_beta_slow": 2.0,
        },
    ),
    "qwen3": ("qwen3", "qwen3", {}, {}),
    "gemma3": ("gemma3", "gemma3_text", GEMMA, GEMMA_KEYS),
    "gemma3 period": (
        "gemma3",
        "gemma3_text",
        GEMMA | {"sliding_window_pattern": 2},
        GEMMA_KEYS | {"gemma3.attention.sliding_window_pattern": 2},
    ),
    "gemma3 pattern and local theta": (
        "gemma3",
        "gemma3_text",
        GEMMA
        | {
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 9_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 200.0},
            },
        },
        {
            "gemma3.attention.sliding_window": WINDOW,
            "gemma3.attention.sliding_window_pattern": [False, True, False],
            "gemma3.rope.freq_base": 9_000.0,
            "gemma3.rope.freq_base_swa": 200.0,
        },
    ),
}


def prompt(num_tokens: int) -> list[int]:
    return random.Random(0).choices(range(VOCABULARY_SIZE), k=num_tokens)


@pytest.mark.parametrize("file", FILES)
def test_logits_of_a_gguf_file_equal_transformers(file, tmp_path):
    architecture, model_type, changes, metadata = FILES[file]
    reference = tiny_transformers_model(model_type, **changes)
    path = save_tiny_gguf(tmp_path / "tiny.gguf", reference, architecture=architecture, metadata=metadata)
    model = load_model(str(path)).model
    token_ids = prompt(60)
    expected = transformers_logits(reference, token_ids)
    torch.testing.assert_close(dense_logits(model, token_ids), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("pattern", "sizes"),
    [(None, [9, 9]), (0, [9, 9]), (1, []), (2, [9, None]), ([False, True], [None, 9]), ([False, False], [])],
)
def test_windows_of_the_layers(pattern, sizes, tmp_path):
    metadata = {"llama.attention.sliding_window": 9}
    if pattern is not None:
        metadata["llama.attention.sliding_window_pattern"] = pattern
    path = save_tiny_gguf(tmp_path / "tiny.gguf", tiny_transformers_model(), metadata=metadata)
    windows = config_from_gguf(GgufFile(path)).windows
    assert [window and window.size for window in windows] == sizes


def test_rotary_divisors_are_llama_3s_scaling(tmp_path):
    scaling = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    reference = tiny_transformers_model("llama", head_dim=16, **rope("llama3", factor=8.0, **scaling))
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](reference.config, torch.device("cpu"))
    plain = 500.0 ** -(torch.arange(8) / 8)
    path = save_tiny_gguf(
        tmp_path / "tiny.gguf",
        reference,
        metadata={"llama.rope.freq_base": 500.0},
        extra={"rope_freqs.weight": plain / scaled},
    )
    token_ids = prompt(60)
    expected = transformers_logits(reference, token_ids)
    logits = dense_logits(load_model(str(path)).model, token_ids)
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


def test_gemma_3_of_27_billion_weights_scales_scores_by_its_hidden_size(tmp_path):
    """Its files do not say so; llama.cpp knows it by its 62 layers."""
    reference = tiny_transformers_model("gemma3_text", num_hidden_layers=62, hidden_size=24, head_dim=8)
    path = save_tiny_gguf(tmp_path / "tiny.gguf", reference, architecture="gemma3")
    shape = config_from_gguf(GgufFile(path)).attention_shape
    assert (shape.head_dim, shape.scale) == (8, (24 / 6) ** -0.5)


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        (
            "unheard",
            {},
            r"architecture 'unheard' is not supported; supported are llama, qwen2, qwen3, gemma3",
        ),
        (
            "llama",
            {"metadata": {"llama.rope.scaling.type": "longrope"}},
            r"rope scaling 'longrope' is not su",
        ),
        (
            "llama",
            {"metadata": {"llama.rope.scaling.yarn_attn_factor": 1.5}},
            r"llama\.rope\.scaling\.yarn_attn_factor is not supported; use a model whose file does not have",
        ),
        (
            "gemma3",
            {"metadata": {"gemma3.final_logit_softcapping": 30.0}},
            r"gemma3\.final_logit_softcapping is not supported",
        ),
        (
            "llama",
            {"metadata": {"llama.rope.dimension_count": 4}},
            r"rope\.dimension_count says rotary positions on 4 of 8 head elements, which is not supported",
        ),
        (
            "llama",
            {"metadata": {"llama.attention.value_length": 16}},
            r"attention\.value_length says values on 16 of 8 head elements, which is not supported",
        ),
        (
            "llama",
            {
                "metadata": {
                    "llama.attention.sliding_window": 9,
                    "llama.attention.sliding_window_pattern": [True],
                }
            },
            r"sliding_window_pattern names 1 layers, block_count says 2",
        ),
        (
            "llama",
            {"extra": {"rope_freqs.weight": torch.ones(3)}},
            r"rope_freqs\.weight has 3 rotary divisors, heads of 8 elements need 4",
        ),
        (
            "llama",
            {"extra": {"rope_freqs.weight": torch.tensor([1.0, 1.0, 0.0, 8.0])}},
            r"rope_freqs\.weight has rotary divisors that are no numbers above 0",
        ),
        (
            "llama",
            {"extra": {"rope_freqs.weight": torch.ones(4)}, "metadata": {"llama.rope.scaling.factor": 2.0}},
            r"rope scaling 'linear' by 2\.0 and a tensor of rotary divisors .* exclude each other",
        ),
    ],
)
def test_unusable_metadata_is_refused(architecture, changes, message, tmp_path):
    reference = tiny_transformers_model("gemma3_text" if architecture == "gemma3" else "llama")
    path = save_tiny_gguf(tmp_path / "tiny.gguf", reference, architecture=architecture, **changes)
    with pytest.raises(ConfigError, match=message) as info:
        config_from_gguf(GgufFile(path))
    assert str(path) in str(info.value)
