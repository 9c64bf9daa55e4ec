"""A decoder's shape from a config.json, in the spelling of transformers 4 or 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.config import Activation, ModelConfig
from prefixcache_worker.model.fields import Fields, unique_ids
from prefixcache_worker.model.model import AttentionWindow
from prefixcache_worker.model.rope import (
    Rope,
    linear_rope,
    llama3_rope,
    plain_rope,
    yarn_amplitude,
    yarn_rope,
)

SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")

_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_SUPPORTED_ROPES = ("default", "linear", "llama3", "yarn")
_LENGTH_DEPENDENT_ROPES = ("dynamic", "longrope", "su")
_FULL, _SLIDING = "full_attention", "sliding_attention"


def config_from_hugging_face(
    config: Mapping[str, Any], *, generation_config: Mapping[str, Any], name: str, source: str
) -> ModelConfig:
    """Read the shape from a config.json and the end-of-text ids of a generation_config.json (may be empty).

    A key that may be missing has the value that transformers gives it then. Raises ConfigError for what the
    decoder cannot compute, a missing key, or keys that contradict each other.
    """
    fields = Fields(config, source)
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(key) is not None:
            raise ConfigError(
                f"{source}: {key} {config[key]} is not supported; use a model whose scores are not capped."
            )
    model_type = fields.require("model_type")
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise ConfigError(
            f"{source}: architecture {model_type!r} is not supported; "
            f"supported are {', '.join(SUPPORTED_MODEL_TYPES)}."
        )
    if config.get("use_bidirectional_attention"):
        raise ConfigError(
            f"{source}: use_bidirectional_attention is not supported: a token would change the keys before "
            "it, which are in the cache; use a model that generates text."
        )
    is_gemma = model_type == "gemma3_text"
    hidden_size = fields.count("hidden_size")
    num_layers = fields.count("num_hidden_layers")
    num_query_heads = fields.count("num_attention_heads")
    own_head_dim = model_type in ("qwen3", "gemma3_text")  # hidden_size says nothing about theirs
    head_dim = fields.count("head_dim", None if own_head_dim else hidden_size // num_query_heads)
    attention_bias = model_type in ("llama", "qwen3", "gemma3_text") and bool(config.get("attention_bias"))
    windows = _windows(fields, model_type, num_layers)
    rope, local_rope = _ropes(fields, model_type, head_dim)
    return ModelConfig(
        architecture=model_type,
        name=name,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_query_heads=num_query_heads,
        num_kv_heads=fields.count("num_key_value_heads", num_query_heads),
        head_dim=head_dim,
        vocabulary_size=fields.count("vocab_size"),
        context_length=fields.count("max_position_embeddings"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope=rope,
        local_rope=local_rope if windows and local_rope != rope else None,
        windows=windows,
        score_scale=fields.number("query_pre_attn_scalar") ** -0.5 if is_gemma else None,
        activation=_activation(fields),
        embedding_scale=hidden_size**0.5 if is_gemma else 1.0,
        norm_offset=1.0 if is_gemma else 0.0,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", is_gemma)),
        qkv_bias=model_type == "qwen2" or attention_bias,
        attention_output_bias=attention_bias,
        mlp_bias=model_type == "llama" and bool(config.get("mlp_bias")),
        qk_norm=model_type in ("qwen3", "gemma3_text"),
        post_norms=is_gemma,
        bos_token_id=config.get("bos_token_id"),
        eos_token_ids=unique_ids([config.get("eos_token_id"), generation_config.get("eos_token_id")]),
    ).checked(source)


def _activation(fields: Fields) -> Activation:
    key = "hidden_activation" if fields.get("hidden_activation") else "hidden_act"
    name = fields.get(key, "silu")
    if name not in _ACTIVATIONS:
        raise ConfigError(
            f"{fields.source}: {key} {name!r} is not supported; supported are {', '.join(_ACTIVATIONS)}."
        )
    return _ACTIVATIONS[name]


# -- windows ---------------------------------------------------------------------------------------


def _windows(fields: Fields, model_type: str, num_layers: int) -> tuple[AttentionWindow | None, ...]:
    """The window of each layer; empty if no layer has one. Raises ConfigError if the keys disagree."""
    uses_window = {"llama": False, "mistral": True, "gemma3_text": True}.get(
        model_type, bool(fields.get("use_sliding_window"))
    )
    size = fields.get("sliding_window", 4096) if uses_window else None
    layer_types = _layer_types(fields, model_type, num_layers, has_window=size is not None)
    if _SLIDING not in layer_types:
        return ()
    if size is None:
        raise ConfigError(
            f"{fields.source}: layer_types has {_SLIDING!r}, but "
            f"{'use_sliding_window is off' if not uses_window else 'sliding_window is null'}; "
            "the two do not belong together."
        )
    window = AttentionWindow(fields.count("sliding_window", 4096))
    return tuple(window if layer_type == _SLIDING else None for layer_type in layer_types)


def _layer_types(fields: Fields, model_type: str, num_layers: int, *, has_window: bool) -> list[str]:
    given = fields.get("layer_types")
    match model_type:
        case "llama" | "mistral":  # all layers alike
            slides = [has_window] * num_layers
        case "gemma3_text":
            period = fields.count("sliding_window_pattern", 6)
            slides = [(layer + 1) % period != 0 for layer in range(num_layers)]
        case _:
            first = fields.count("max_window_layers", 28, at_least=0)
            slides = [has_window and layer >= first for layer in range(num_layers)]
    derived = [_SLIDING if slide else _FULL for slide in slides]
    if given is None:
        return derived
    if unknown := sorted({str(layer_type) for layer_type in given} - {_FULL, _SLIDING}):
        raise ConfigError(
            f"{fields.source}: layer_types {', '.join(unknown)} is not supported; "
            f"supported are {_FULL} and {_SLIDING}."
        )
    if len(given) != num_layers:
        raise ConfigError(
            f"{fields.source}: layer_types names {len(given)} layers, num_hidden_layers says {num_layers}; "
            "the two do not belong together."
        )
    if model_type in ("llama", "mistral") and given != derived:
        raise ConfigError(
            f"{fields.source}: layer_types and sliding_window disagree: a {model_type} decoder has "
            f"{derived[0]!r} in every layer; use a file without layer_types."
        )
    return list(given)


# -- rotary positions ------------------------------------------------------------------------------


def _ropes(fields: Fields, model_type: str, head_dim: int) -> tuple[Rope, Rope | None]:
    """The rotary positions of full layers, and those of layers with a window where the file sets them apart.

    transformers 5 writes `rope_parameters`, one for all layers or one for each layer type; before, there were
    `rope_theta`, `rope_scaling` and, for Gemma's local layers, `rope_local_base_freq`.
    """
    given = fields.get("rope_parameters") or {}
    is_nested = _FULL in given or _SLIDING in given
    full = given.get(_FULL) if is_nested else given or fields.get("rope_scaling")
    local = given.get(_SLIDING) if is_nested else None
    is_gemma = model_type == "gemma3_text"
    theta = fields.number("rope_theta", 1_000_000.0 if is_gemma else 10_000.0)
    rope = _rope(fields, full or {}, theta, head_dim)
    if not (is_gemma or local):
        return rope, None
    local_theta = fields.number("rope_local_base_freq", 10_000.0)
    return rope, _rope(fields, local or {}, local_theta, head_dim)


def _rope(fields: Fields, given: Mapping[str, Any], default_theta: float, head_dim: int) -> Rope:
    """The rotary positions that one block of parameters describes."""
    source = fields.source
    kind = given.get("rope_type", given.get("type", "default"))
    if kind in _LENGTH_DEPENDENT_ROPES:
        raise ConfigError(
            f"{source}: rope scaling {kind!r} turns keys by the length of their sequence, so keys in the "
            f"cache would be wrong for a longer one; supported are {', '.join(_SUPPORTED_ROPES)}."
        )
    if kind not in _SUPPORTED_ROPES:
        raise ConfigError(
            f"{source}: rope scaling {kind!r} is not supported; supported are {', '.join(_SUPPORTED_ROPES)}."
        )
    rotated = given.get("partial_rotary_factor", fields.get("partial_rotary_factor"))
    if rotated not in (None, 1):
        raise ConfigError(
            f"{source}: partial_rotary_factor {rotated} is not supported; "
            "use a model that rotates whole heads."
        )
    parameters = Fields(given, f"{source}: rope scaling {kind!r}")
    theta = parameters.number("rope_theta", default_theta)
    if kind == "default":
        return plain_rope(theta, head_dim)
    if kind == "linear":
        return linear_rope(theta, head_dim, factor=parameters.number("factor"))
    context_length = fields.count("max_position_embeddings")
    original_length = fields.count(
        "original_max_position_embeddings",
        parameters.count("original_max_position_embeddings", context_length),
    )
    if kind == "llama3":
        return _llama3_rope(parameters, theta, head_dim, original_length)
    factor = parameters.number("factor", context_length / original_length)
    return yarn_rope(
        theta,
        head_dim,
        factor=factor,
        original_context_length=original_length,
        amplitude=_yarn_amplitude(parameters, factor),
        beta_fast=parameters.number("beta_fast", 32.0),
        beta_slow=parameters.number("beta_slow", 1.0),
        rounds_range=bool(given.get("truncate", True)),
    )


def _llama3_rope(parameters: Fields, theta: float, head_dim: int, original_length: int) -> Rope:
    low, high = parameters.number("low_freq_factor"), parameters.number("high_freq_factor")
    if low >= high:
        raise ConfigError(
            f"{parameters.source}: low_freq_factor {low} is not below high_freq_factor {high}; "
            "fetch the file again."
        )
    return llama3_rope(
        theta,
        head_dim,
        factor=parameters.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_context_length=original_length,
    )


def _yarn_amplitude(parameters: Fields, factor: float) -> float | None:
    """The file's own, or the ratio of DeepSeek's two weights; None: it has neither."""
    if parameters.get("attention_factor") is not None:
        return parameters.number("attention_factor")
    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        weight, weight_of_all = parameters.number("mscale"), parameters.number("mscale_all_dim")
        return yarn_amplitude(factor, weight) / yarn_amplitude(factor, weight_of_all)
    return None
