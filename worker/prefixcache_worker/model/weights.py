"""From a file's tensors to the decoder's: checked, stacked and in one rotary order."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
import xxhash

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.config import ModelConfig
from prefixcache_worker.model.decoder import DecoderWeights, LayerWeights
from prefixcache_worker.model.linear import Weight, pack_weight
from prefixcache_worker.model.weight_format import WeightFormat

_KV_FORMAT = 1
"""Raise it whenever the decoder would write other keys or values from the same weights."""
_NUM_NAMES_IN_ERROR = 3


class TensorSource(Protocol):
    """Named tensors of one model, names as in a Hugging Face checkpoint."""

    @property
    def description(self) -> str:
        """The file or folder, for errors."""
        ...

    @property
    def weight_paths(self) -> list[Path]:
        """The files that hold the tensors."""
        ...

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor."""
        ...

    def name_in_file(self, name: str) -> str:
        """What the file calls this tensor, for errors."""
        ...

    def load(self, name: str) -> torch.Tensor:
        """The tensor in float32."""
        ...


def load_weights(
    source: TensorSource, config: ModelConfig, *, device: torch.device, weight_format: WeightFormat
) -> DecoderWeights:
    """Read all tensors of a model and pack them, one layer after the other.

    Raises ConfigError if one is missing, unknown, of another shape, or holds NaN or infinity.
    """
    _check_tensors(source, config)

    def load(name: str) -> torch.Tensor:
        return _load_finite(source, name).to(device)

    embedding = load("model.embed_tokens.weight")
    output = embedding if config.tie_word_embeddings else load("lm_head.weight")
    return DecoderWeights(
        embedding=embedding if weight_format == "fp32" else embedding.bfloat16(),
        layers=tuple(
            _load_layer(source, config, index, device, weight_format) for index in range(config.num_layers)
        ),
        final_norm=load("model.norm.weight") + config.norm_offset,
        output=pack_weight(output, weight_format),
    )


def build_id(config: ModelConfig, weight_paths: list[Path], weight_format: WeightFormat) -> str:
    """A hash of the shape, every weight byte and their format: cached KV of another build never matches.

    The whole file is hashed, which takes a fraction of the time that reading its weights takes.
    """
    shape = json.dumps([_KV_FORMAT, weight_format, asdict(config)], sort_keys=True)
    digest = xxhash.xxh3_128(shape.encode())
    for path in weight_paths:
        with path.open("rb") as file:
            while piece := file.read(1 << 22):
                digest.update(piece)
    return digest.hexdigest()


def _load_layer(
    source: TensorSource, config: ModelConfig, index: int, device: torch.device, weight_format: WeightFormat
) -> LayerWeights:
    def load(part: str, kind: str = "weight") -> torch.Tensor:
        return _load_finite(source, f"model.layers.{index}.{part}.{kind}")

    def load_norm(part: str) -> torch.Tensor:
        return (load(part) + config.norm_offset).to(device)

    def load_rotated(part: str, num_heads: int, kind: str) -> torch.Tensor:
        tensor = load(part, kind)
        return _half_split(tensor, num_heads) if config.rope_interleaved else tensor

    def load_qkv(kind: str) -> torch.Tensor:
        return torch.cat(
            (
                load_rotated("self_attn.q_proj", config.num_query_heads, kind),
                load_rotated("self_attn.k_proj", config.num_kv_heads, kind),
                load("self_attn.v_proj", kind),
            )
        ).to(device)

    def load_gate_up(kind: str) -> torch.Tensor:
        return torch.cat((load("mlp.gate_proj", kind), load("mlp.up_proj", kind))).to(device)

    def pack(weight: torch.Tensor) -> Weight:
        return pack_weight(weight.to(device), weight_format)

    norms = _norm_names(config)
    return LayerWeights(
        attention_norm=load_norm(norms.attention),
        qkv=pack(load_qkv("weight")),
        qkv_bias=load_qkv("bias") if config.qkv_bias else None,
        query_norm=load_norm("self_attn.q_norm") if config.qk_norm else None,
        key_norm=load_norm("self_attn.k_norm") if config.qk_norm else None,
        attention_output=pack(load("self_attn.o_proj")),
        attention_output_bias=(
            load("self_attn.o_proj", "bias").to(device) if config.attention_output_bias else None
        ),
        attention_post_norm=load_norm(norms.attention_post) if norms.attention_post else None,
        mlp_norm=load_norm(norms.mlp),
        gate_up=pack(load_gate_up("weight")),
        gate_up_bias=load_gate_up("bias") if config.mlp_bias else None,
        down=pack(load("mlp.down_proj")),
        down_bias=load("mlp.down_proj", "bias").to(device) if config.mlp_bias else None,
        mlp_post_norm=load_norm(norms.mlp_post) if norms.mlp_post else None,
    )


class _NormNames(NamedTuple):
    """What a checkpoint calls a layer's norms; None: the layer has no such norm."""

    attention: str
    mlp: str
    attention_post: str | None = None
    mlp_post: str | None = None


def _norm_names(config: ModelConfig) -> _NormNames:
    """With post-norms, "post attention" names the one behind attention; without, the one before the MLP."""
    if not config.post_norms:
        return _NormNames("input_layernorm", "post_attention_layernorm")
    return _NormNames(
        "input_layernorm",
        "pre_feedforward_layernorm",
        "post_attention_layernorm",
        "post_feedforward_layernorm",
    )


def _load_finite(source: TensorSource, name: str) -> torch.Tensor:
    tensor = source.load(name)
    if not torch.stack(tensor.aminmax()).isfinite().all():  # NaN anywhere makes both NaN
        raise ConfigError(
            f"{source.description}: tensor {source.name_in_file(name)} holds NaN or infinity; "
            "the file is damaged, fetch it again."
        )
    return tensor


def _half_split(
    rows: torch.Tensor,  # [num_heads * head_dim, ...], rotary pairs at 2i and 2i + 1
    num_heads: int,
) -> torch.Tensor:  # the same shape, rotary pairs at i and i + head_dim / 2
    """Reorder the rows of each head. llama.cpp stores llama's Q and K with rotary partners side by side.

    Queries and keys are permuted alike, so their products, all that attention sees, stay the same; doing it
    once here leaves the decoder a single form of rotation.
    """
    return rows.view(num_heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    num_query_rows = config.num_query_heads * config.head_dim
    num_kv_rows = config.num_kv_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (num_query_rows, hidden),
        "self_attn.k_proj.weight": (num_kv_rows, hidden),
        "self_attn.v_proj.weight": (num_kv_rows, hidden),
        "self_attn.o_proj.weight": (hidden, num_query_rows),
        "mlp.gate_proj.weight": (intermediate, hidden),
        "mlp.up_proj.weight": (intermediate, hidden),
        "mlp.down_proj.weight": (hidden, intermediate),
    }
    layer |= {f"{norm}.weight": (hidden,) for norm in _norm_names(config) if norm}
    if config.qkv_bias:
        layer["self_attn.q_proj.bias"] = (num_query_rows,)
        layer["self_attn.k_proj.bias"] = (num_kv_rows,)
        layer["self_attn.v_proj.bias"] = (num_kv_rows,)
    if config.attention_output_bias:
        layer["self_attn.o_proj.bias"] = (hidden,)
    if config.mlp_bias:
        layer["mlp.gate_proj.bias"] = (intermediate,)
        layer["mlp.up_proj.bias"] = (intermediate,)
        layer["mlp.down_proj.bias"] = (hidden,)
    if config.qk_norm:
        layer["self_attn.q_norm.weight"] = (config.head_dim,)
        layer["self_attn.k_norm.weight"] = (config.head_dim,)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocabulary_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocabulary_size, hidden)
    for index in range(config.num_layers):
        shapes |= {f"model.layers.{index}.{part}": shape for part, shape in layer.items()}
    return shapes


def _check_tensors(source: TensorSource, config: ModelConfig) -> None:
    expected, found = _expected_shapes(config), source.shapes()
    if missing := [name for name in expected if name not in found]:
        raise ConfigError(
            f"{source.description}: {_listing(source, missing)} missing; "
            "the model is incomplete, fetch it again."
        )
    if extra := [name for name in found if name not in expected and not _is_redundant(name, config)]:
        raise ConfigError(
            f"{source.description}: {_listing(source, extra)} unknown to a {config.architecture} decoder; "
            "use a model without them."
        )
    for name, shape in expected.items():
        if found[name] != shape:
            raise ConfigError(
                f"{source.description}: tensor {source.name_in_file(name)} has shape {list(found[name])}, "
                f"the configuration says {list(shape)}; weights and configuration do not belong together."
            )


def _is_redundant(name: str, config: ModelConfig) -> bool:
    """Some checkpoints store what we compute (rotary frequencies) or have already (tied output)."""
    return name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and config.tie_word_embeddings)


def _listing(source: TensorSource, names: list[str]) -> str:
    shown = ", ".join(source.name_in_file(name) for name in names[:_NUM_NAMES_IN_ERROR])
    more = f" and {len(names) - _NUM_NAMES_IN_ERROR} more" if len(names) > _NUM_NAMES_IN_ERROR else ""
    return f"tensor {shown} is" if len(names) == 1 else f"tensors {shown}{more} are"
