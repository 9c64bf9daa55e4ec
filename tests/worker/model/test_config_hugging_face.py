"""config.json in every spelling: what it means, and what is refused in which words."""

from __future__ import annotations

import pytest

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.config import ModelConfig
from prefixcache_worker.model.config_hugging_face import config_from_hugging_face
from prefixcache_worker.model.rope import linear_rope, plain_rope

FULL, SLIDING = "full_attention", "sliding_attention"
SHAPE = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
GEMMA = {"query_pre_attn_scalar": 24, "hidden_activation": "gelu_pytorch_tanh"}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def read(model_type: str = "llama", **changes) -> ModelConfig:
    """The shape behind a config.json; a change of `...` leaves the key out."""
    config = SHAPE | (GEMMA if model_type == "gemma3_text" else {}) | {"model_type": model_type} | changes
    present = {key: value for key, value in config.items() if value is not ...}
    return config_from_hugging_face(present, generation_config={}, name="tiny", source="config.json")


def window_sizes(config: ModelConfig) -> list[int | None]:
    return [window and window.size for window in config.windows]


# -- spellings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, {"rope_theta": 500.0}),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}},
            {"rope_theta": 500, "rope_scaling": {"type": "linear", "factor": 2}},
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3}},
            {"rope_theta": 500.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10_000.0, **YARN}},
            {"rope_scaling": {"rope_type": "yarn", **YARN}},
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10_000.0, **YARN}},
            {"rope_scaling": {"type": "yarn", **YARN, "factor": None}},  # context over original length
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10_000.0, **YARN}},
            {
                "rope_scaling": {"type": "yarn", **YARN, "original_max_position_embeddings": ...},
                "original_max_position_embeddings": 64,
            },
        ),
    ],
)
def test_rotary_positions_of_transformers_4_and_5_are_the_same(new, old):
    scaling = old.get("rope_scaling", {})
    old = old | {"rope_scaling": {key: value for key, value in scaling.items() if value is not ...}}
    assert read(**new) == read(**old)
    assert read(**new) != read()


def test_gemma_layers_of_transformers_4_and_5_are_the_same():
    new = read(
        "gemma3_text",
        sliding_window=13,
        layer_types=[SLIDING, SLIDING, FULL, SLIDING],
        rope_parameters={
            FULL: {"rope_type": "linear", "rope_theta": 9_000.0, "factor": 8.0},
            SLIDING: {"rope_type": "default", "rope_theta": 200.0},
        },
    )
    old = read(
        "gemma3_text",
        sliding_window=13,
        sliding_window_pattern=3,
        rope_theta=9_000.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        rope_local_base_freq=200.0,
    )
    assert new == old
    assert old.rope == linear_rope(9_000.0, 8, factor=8.0)
    assert old.local_rope == plain_rope(200.0, 8)


def test_gemma_3_of_a_billion_weights():
    config = config_from_hugging_face(
        {
            "model_type": "gemma3_text",
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "bos_token_id": 2,
            "eos_token_id": [1, 106],
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "max_position_embeddings": 32768,
            "num_attention_heads": 4,
            "num_hidden_layers": 26,
            "num_key_value_heads": 1,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06,
            "rope_local_base_freq": 10000,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
            "vocab_size": 262144,
        },
        generation_config={"eos_token_id": [1, 106]},
        name="gemma",
        source="config.json",
    )
    full = [layer for layer, window in enumerate(config.windows) if window is None]
    assert full == [5, 11, 17, 23]
    assert config.attention_shape.window(0).size == 512
    assert config.rope == plain_rope(1_000_000.0, 256)
    assert config.local_rope == plain_rope(10_000.0, 256)
    assert config.attention_shape.scale == 1 / 16
    assert config.embedding_scale == pytest.approx(33.94113)
    assert (config.activation, config.norm_offset, config.post_norms) == ("gelu_tanh", 1.0, True)
    assert config.tie_word_embeddings
    assert config.eos_token_ids == (1, 106)


# -- windows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "changes", "sizes"),
    [
        ("llama", {"sliding_window": 9}, []),
        ("mistral", {"sliding_window": 9}, [9, 9, 9, 9]),
        ("mistral", {"sliding_window": None}, []),
        ("mistral", {}, [4096] * 4),
        ("mistral", {"sliding_window": 9, "layer_types": [SLIDING] * 4}, [9, 9, 9, 9]),
        ("qwen2", {"sliding_window": 9, "max_window_layers": 0}, []),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 9}, []),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
            [None, None, 9, 9],
        ),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 3}, [None, None, None, 4096]),
        (
            "qwen2",
            {
                "use_sliding_window": True,
                "sliding_window": 9,
                "max_window_layers": 0,
                "layer_types": [FULL, SLIDING, FULL, FULL],
            },
            [None, 9, None, None],
        ),
        ("gemma3_text", {"sliding_window": 9}, [9, 9, 9, 9]),
        ("gemma3_text", {"sliding_window": 9, "sliding_window_pattern": 2}, [9, None, 9, None]),
        ("gemma3_text", {"sliding_window": 9, "sliding_window_pattern": 1}, []),
        ("gemma3_text", {"sliding_window": None, "sliding_window_pattern": 1}, []),
    ],
)
def test_windows_of_the_layers(model_type, changes, sizes):
    config = read(model_type, **changes)
    assert window_sizes(config) == sizes
    assert (config.local_rope is not None) == (model_type == "gemma3_text" and bool(sizes))
    assert config.context_length == 256


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("gpt2", {}, r"architecture 'gpt2' is not supported; supported are llama, mistral, qwen2, "),
        ("gemma2", {"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping 50\.0 is not supported; use"),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, r"final_logit_softcapping 30\.0 is not supported"),
        ("gemma3_text", {"use_bidirectional_attention": True}, r"a token would change the keys before it"),
        ("gemma3_text", {"query_pre_attn_scalar": ...}, r"query_pre_attn_scalar is missing"),
        ("qwen3", {"head_dim": None}, r"head_dim is missing"),
        ("llama", {"hidden_act": "gelu"}, r"hidden_act 'gelu' is not supported; supported are silu, gelu_py"),
        ("llama", {"hidden_size": None}, r"hidden_size is missing; the file is incomplete, fetch it again"),
        (
            "llama",
            {"hidden_size": "48"},
            r"hidden_size is '48', not a whole number of at least 1; fetch the file",
        ),
        ("llama", {"num_hidden_layers": 0}, r"num_hidden_layers is 0, not a whole number of at least 1"),
        (
            "llama",
            {"num_hidden_layers": True},
            r"num_hidden_layers is True, not a whole number of at least 1",
        ),
        ("llama", {"vocab_size": 300.5}, r"vocab_size is 300\.5, not a whole number of at least 1"),
        ("llama", {"rms_norm_eps": float("nan")}, r"rms_norm_eps is nan, not a number above 0"),
        ("llama", {"num_key_value_heads": 4}, r"6 query heads do not divide among 4 KV heads"),
        ("llama", {"head_dim": 7}, r"head_dim 7 is odd"),
        # -- windows
        ("mistral", {"sliding_window": -1}, r"sliding_window is -1, not a whole number of at least 1"),
        (
            "mistral",
            {"sliding_window": 9, "layer_types": [SLIDING, FULL] * 2},
            r"layer_types and sliding_window disagree: a mistral decoder has 'sliding_attention' in every",
        ),
        (
            "qwen2",
            {"max_window_layers": "all"},
            r"max_window_layers is 'all', not a whole number of at least 0",
        ),
        ("qwen2", {"layer_types": [FULL] * 3}, r"layer_types names 3 layers, num_hidden_layers says 4"),
        (
            "qwen2",
            {"layer_types": [FULL, SLIDING] * 2},
            r"'sliding_attention', but use_sliding_window is off",
        ),
        ("qwen3", {"layer_types": ["linear_attention"] * 4}, r"layer_types linear_attention is not support"),
        ("gemma3_text", {"sliding_window": None}, r"'sliding_attention', but sliding_window is null"),
        # -- rotary positions
        (
            "llama",
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2}},
            r"'dynamic' turns keys by the len",
        ),
        (
            "llama",
            {"rope_scaling": {"type": "longrope"}},
            r"rope scaling 'longrope' turns keys by the length",
        ),
        (
            "llama",
            {"rope_scaling": {"type": "axial"}},
            r"'axial' is not supported; supported are default, li",
        ),
        ("llama", {"rope_scaling": {"type": "linear"}}, r"rope scaling 'linear': factor is missing"),
        ("llama", {"rope_scaling": {"type": "yarn", "factor": 0}}, r"factor is 0, not a number above 0"),
        (
            "llama",
            {"rope_scaling": {"type": "llama3", **LLAMA3, "low_freq_factor": 4.0}},
            r"low_freq_factor 4\.0 is not below high_freq_factor 4\.0",
        ),
        ("llama", {"partial_rotary_factor": 0.5}, r"partial_rotary_factor 0\.5 is not supported"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
            r"partial_rotary_factor 0\.25 is not supported; use a model that rotates whole heads",
        ),
        (
            "gemma3_text",
            {"rope_parameters": {SLIDING: {"rope_type": "dynamic", "factor": 2.0}}},
            r"rope scaling 'dynamic' turns keys",
        ),
    ],
)
def test_unusable_configurations_are_refused(model_type, changes, message):
    with pytest.raises(ConfigError, match=rf"^config\.json: .*{message}"):
        read(model_type, **changes)
