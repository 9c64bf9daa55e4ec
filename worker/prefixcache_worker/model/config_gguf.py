"""A decoder's shape from the metadata of a GGUF file, in the keys that llama.cpp writes and reads."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.config import ModelConfig
from prefixcache_worker.model.fields import Fields, unique_ids
from prefixcache_worker.model.gguf_file import GgufFile
from prefixcache_worker.model.model import AttentionWindow
from prefixcache_worker.model.rope import Rope, divided_rope, linear_rope, plain_rope, yarn_rope

SUPPORTED_ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
"""As GGUF files call them; Mistral and SmolLM2 are "llama" there."""

_SUPPORTED_ROPES = ("none", "linear", "yarn")
_UNSUPPORTED_KEYS = (
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
)
_LAYERS_OF_LARGEST_GEMMA3 = 62


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """Read the shape from a file's metadata; which biases and heads there are, its tensors say.

    Raises ConfigError for what the decoder cannot compute, a missing key, or keys that contradict each other.
    """
    source, whole = file.description, Fields(file.metadata, file.description)
    architecture = str(whole.require("general.architecture"))
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise ConfigError(
            f"{source}: architecture {architecture!r} is not supported; "
            f"supported are {', '.join(SUPPORTED_ARCHITECTURES)}."
        )
    fields = Fields(file.metadata, source, prefix=f"{architecture}.")
    for key in _UNSUPPORTED_KEYS:
        if fields.get(key) is not None:
            raise ConfigError(
                f"{source}: {architecture}.{key} is not supported; use a model whose file does not have it."
            )
    is_gemma = architecture == "gemma3"
    num_layers = fields.count("block_count")
    hidden_size = fields.count("embedding_length")
    num_query_heads = fields.count("attention.head_count")
    head_dim = _head_dim(fields, hidden_size // num_query_heads)
    windows = _windows(fields, num_layers, default_period=6 if is_gemma else 0)
    tensor_names = file.shapes().keys()
    rope = _rope(fields, head_dim, file.rope_divisors)
    local_rope = plain_rope(fields.number("rope.freq_base_swa", 10_000.0), head_dim) if is_gemma else rope
    is_largest_gemma = num_layers == _LAYERS_OF_LARGEST_GEMMA3  # the files do not say what its scores need
    score_head_dim = hidden_size // num_query_heads if is_largest_gemma else head_dim
    bos = whole.get("tokenizer.ggml.bos_token_id")
    eos = [whole.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return ModelConfig(
        architecture=architecture,
        name=str(whole.get("general.name", architecture)),
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=fields.count("feed_forward_length"),
        num_query_heads=num_query_heads,
        num_kv_heads=fields.count("attention.head_count_kv", num_query_heads),
        head_dim=head_dim,
        vocabulary_size=len(whole.require("tokenizer.ggml.tokens")),
        context_length=fields.count("context_length"),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=rope,
        local_rope=local_rope if windows and local_rope != rope else None,
        windows=windows,
        score_scale=score_head_dim**-0.5 if is_gemma else None,
        activation="gelu_tanh" if is_gemma else "silu",
        embedding_scale=hidden_size**0.5 if is_gemma else 1.0,
        rope_interleaved=architecture == "llama",
        tie_word_embeddings="lm_head.weight" not in tensor_names,
        qkv_bias=architecture == "qwen2" or _has_bias(tensor_names, "self_attn.q_proj"),
        attention_output_bias=_has_bias(tensor_names, "self_attn.o_proj"),
        mlp_bias=_has_bias(tensor_names, "mlp.down_proj"),
        qk_norm=architecture in ("qwen3", "gemma3"),
        post_norms=is_gemma,
        bos_token_id=None if bos is None else int(bos),
        eos_token_ids=unique_ids(eos),
    ).checked(source)


def _head_dim(fields: Fields, default: int) -> int:
    head_dim = fields.count("attention.key_length", default)
    for what, key in (
        ("values", "attention.value_length"),
        ("rotary positions", "rope.dimension_count"),
    ):
        if (size := fields.count(key, head_dim)) != head_dim:
            raise ConfigError(
                f"{fields.source}: {key} says {what} on {size} of {head_dim} head elements, which is not "
                "supported; use a model with keys and values of one size that rotates whole heads."
            )
    return head_dim


def _has_bias(tensor_names: Collection[str], part: str) -> bool:
    return f"model.layers.0.{part}.bias" in tensor_names


def _windows(fields: Fields, num_layers: int, *, default_period: int) -> tuple[AttentionWindow | None, ...]:
    """The window of each layer; empty if no layer has one.

    The pattern says for each layer whether it has the window, or is a period: its last layer has none; a
    period of 0 is no pattern, and every layer has the window.
    """
    size = fields.count("attention.sliding_window", 0, at_least=0)
    key = "attention.sliding_window_pattern"
    if isinstance(pattern := fields.get(key), list):
        slides = [bool(slide) for slide in pattern]
    else:
        period = fields.count(key, default_period, at_least=0)
        slides = [period == 0 or (layer + 1) % period != 0 for layer in range(num_layers)]
    if len(slides) != num_layers:
        raise ConfigError(
            f"{fields.source}: {key} names {len(slides)} layers, block_count says {num_layers}; "
            "the two do not belong together."
        )
    window = AttentionWindow(size)
    return tuple(window if slide else None for slide in slides) if size and any(slides) else ()


def _rope(fields: Fields, head_dim: int, divisors: Sequence[float] | None) -> Rope:
    """Llama 3.1's scaling has no key: its files hold what each frequency is divided by."""
    theta = fields.number("rope.freq_base", 10_000.0)
    kind = fields.get("rope.scaling.type", "linear")  # llama.cpp takes a bare factor for linear
    if kind not in _SUPPORTED_ROPES:
        raise ConfigError(
            f"{fields.source}: rope scaling {kind!r} is not supported; "
            f"supported are {', '.join(_SUPPORTED_ROPES)}."
        )
    factor = 1.0 if kind == "none" else fields.number("rope.scaling.factor", 1.0)
    if divisors is not None:
        if factor != 1:
            raise ConfigError(
                f"{fields.source}: rope scaling {kind!r} by {factor} and a tensor of rotary divisors "
                "(rope_freqs.weight) exclude each other; use a file with one of the two."
            )
        if len(divisors) != head_dim // 2:
            raise ConfigError(
                f"{fields.source}: tensor rope_freqs.weight has {len(divisors)} rotary divisors, heads of "
                f"{head_dim} elements need {head_dim // 2}; weights and metadata do not belong together."
            )
        if not all(0 < divisor < math.inf for divisor in divisors):
            raise ConfigError(
                f"{fields.source}: tensor rope_freqs.weight has rotary divisors that are no numbers above 0; "
                "the file is damaged, fetch it again."
            )
        return divided_rope(theta, head_dim, divisors=divisors)
    if kind == "yarn":
        return yarn_rope(
            theta,
            head_dim,
            factor=factor,
            original_context_length=fields.count(
                "rope.scaling.original_context_length", fields.count("context_length")
            ),
            beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        )
    return linear_rope(theta, head_dim, factor=factor) if factor != 1 else plain_rope(theta, head_dim)
