"""What a decoder's shape is, as its file states it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.model import AttentionShape

SUPPORTED_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
"""Decoders that differ only in the fields of `ModelConfig`. A GGUF file calls Mistral "llama" too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a llama-like decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

    architecture: str
    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    vocabulary_size: int
    context_length: int
    rms_norm_eps: float
    rope_theta: float
    rope_interleaved: bool = False
    """The file's Q and K rows pair element 2i with 2i + 1; otherwise i with i + head_dim / 2."""
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def attention_shape(self) -> AttentionShape:
        return AttentionShape(
            num_layers=self.num_layers,
            num_query_heads=self.num_query_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
        )


def config_from_gguf(metadata: Mapping[str, Any], *, has_output_tensor: bool, source: str) -> ModelConfig:
    """Read the shape from a GGUF file's metadata.

    `has_output_tensor`: the file holds an output projection of its own. `source` names the file in errors.
    Raises ConfigError for another architecture, rope scaling or a missing key.
    """
    fields = _Fields(metadata, source)
    architecture = fields.require("general.architecture")
    _check_architecture(architecture, source)

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    scaling = metadata.get(key("rope.scaling.type"), "none")
    if scaling != "none":
        raise ConfigError(
            f"{source}: rope scaling {scaling!r} is not supported; use a model without rope scaling."
        )
    hidden_size = int(fields.require(key("embedding_length")))
    num_query_heads = int(fields.require(key("attention.head_count")))
    head_dim = int(metadata.get(key("attention.key_length"), hidden_size // num_query_heads))
    rotary_dim = int(metadata.get(key("rope.dimension_count"), head_dim))
    if rotary_dim != head_dim:
        raise ConfigError(
            f"{source}: rotary positions on {rotary_dim} of {head_dim} head elements are not supported; "
            "use a model that rotates whole heads."
        )
    context_length = int(fields.require(key("context_length")))
    window = metadata.get(key("attention.sliding_window"))
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    eos = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return _checked(
        ModelConfig(
            architecture=architecture,
            name=str(metadata.get("general.name", architecture)),
            num_layers=int(fields.require(key("block_count"))),
            hidden_size=hidden_size,
            intermediate_size=int(fields.require(key("feed_forward_length"))),
            num_query_heads=num_query_heads,
            num_kv_heads=int(metadata.get(key("attention.head_count_kv"), num_query_heads)),
            head_dim=head_dim,
            vocabulary_size=len(fields.require("tokenizer.ggml.tokens")),
            context_length=_context_within_window(context_length, window),
            rms_norm_eps=float(fields.require(key("attention.layer_norm_rms_epsilon"))),
            rope_theta=float(metadata.get(key("rope.freq_base"), 10_000.0)),
            rope_interleaved=architecture == "llama",
            tie_word_embeddings=not has_output_tensor,
            qkv_bias=architecture == "qwen2",
            qk_norm=architecture == "qwen3",
            bos_token_id=None if bos is None else int(bos),
            eos_token_ids=_unique_ids(eos),
        ),
        source,
    )


def config_from_hugging_face(
    config: Mapping[str, Any], *, generation_config: Mapping[str, Any], name: str, source: str
) -> ModelConfig:
    """Read the shape from a config.json and the end-of-text ids of a generation_config.json (may be empty).

    Raises ConfigError for another architecture, rope scaling, unsupported biases or a missing key.
    """
    fields = _Fields(config, source)
    architecture = fields.require("model_type")
    _check_architecture(architecture, source)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling != "default":
        raise ConfigError(
            f"{source}: rope scaling {scaling!r} is not supported; use a model without rope scaling."
        )
    has_other_bias = architecture != "qwen2" and config.get("attention_bias", False)
    if has_other_bias or config.get("mlp_bias", False):
        raise ConfigError(
            f"{source}: attention_bias and mlp_bias are not supported; use a model without these biases."
        )
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"{source}: hidden_act {activation!r} is not supported; only 'silu' is.")
    hidden_size = int(fields.require("hidden_size"))
    num_query_heads = int(fields.require("num_attention_heads"))
    uses_window = config.get("use_sliding_window", architecture == "mistral")
    return _checked(
        ModelConfig(
            architecture=architecture,
            name=name,
            num_layers=int(fields.require("num_hidden_layers")),
            hidden_size=hidden_size,
            intermediate_size=int(fields.require("intermediate_size")),
            num_query_heads=num_query_heads,
            num_kv_heads=int(config.get("num_key_value_heads") or num_query_heads),
            head_dim=int(config.get("head_dim") or hidden_size // num_query_heads),
            vocabulary_size=int(fields.require("vocab_size")),
            context_length=_context_within_window(
                int(fields.require("max_position_embeddings")),
                config.get("sliding_window") if uses_window else None,
            ),
            rms_norm_eps=float(fields.require("rms_norm_eps")),
            rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=architecture == "qwen2",
            qk_norm=architecture == "qwen3",
            bos_token_id=config.get("bos_token_id"),
            eos_token_ids=_unique_ids([config.get("eos_token_id"), generation_config.get("eos_token_id")]),
        ),
        source,
    )


class _Fields:
    """A mapping whose missing keys are errors that name the file."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values = values
        self._source = source

    def require(self, key: str) -> Any:
        value = self._values.get(key)
        if value is None:
            raise ConfigError(f"{self._source}: {key} is missing; the file is incomplete, fetch it again.")
        return value


def _check_architecture(architecture: str, source: str) -> None:
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise ConfigError(
            f"{source}: architecture {architecture!r} is not supported; "
            f"supported are {', '.join(SUPPORTED_ARCHITECTURES)}."
        )


def _context_within_window(context_length: int, window: int | None) -> int:
    """Inside its sliding window a model attends to everything, so the window bounds what we can serve."""
    return min(context_length, int(window)) if window else context_length


def _unique_ids(values: list[Any]) -> tuple[int, ...]:
    """Flatten ids, lists of ids and None, keeping the order."""
    ids: dict[int, None] = {}
    for value in values:
        for token_id in value if isinstance(value, list) else [value]:
            if token_id is not None:
                ids[int(token_id)] = None
    return tuple(ids)


def _checked(config: ModelConfig, source: str) -> ModelConfig:
    if config.num_query_heads % config.num_kv_heads:
        raise ConfigError(
            f"{source}: {config.num_query_heads} query heads do not divide among {config.num_kv_heads} "
            "KV heads; the file is damaged, fetch it again."
        )
    if config.head_dim % 2:
        raise ConfigError(f"{source}: head_dim {config.head_dim} is odd; rotary positions need an even one.")
    return config
