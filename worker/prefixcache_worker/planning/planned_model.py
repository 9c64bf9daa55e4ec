"""What has to be known of a model to plan its memory: no tensor of it is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.checkpoint_folder import CheckpointFolder
from prefixcache_worker.model.config import ModelConfig
from prefixcache_worker.model.config_gguf import config_from_gguf
from prefixcache_worker.model.config_hugging_face import config_from_hugging_face
from prefixcache_worker.model.default_model import default_model_path
from prefixcache_worker.model.gguf_file import GgufFile
from prefixcache_worker.model.model import AttentionShape
from prefixcache_worker.model.weight_format import WeightFormat
from prefixcache_worker.model.weights import TensorSource

PRODUCT_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}
"""Of one element of a weight that is multiplied with, by the format it is kept in."""
EMBEDDING_BYTES = {"fp32": 4, "bf16": 2, "int8": 2}
FLOAT_BYTES = 4
"""Of everything else: norms, biases, and the scales of int8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """A model's shape, and the bytes of its weights."""

    name: str
    shape: AttentionShape
    context_length: int | None
    """Most tokens of one sequence; None: not known."""
    weight_bytes: int | None
    """As a worker keeps them; None: not known."""


def model_of_shape(*, num_layers: int, num_kv_heads: int, head_dim: int) -> PlannedModel:
    """A model of which only the size of its KV is known."""
    shape = AttentionShape(
        num_layers=num_layers, num_query_heads=num_kv_heads, num_kv_heads=num_kv_heads, head_dim=head_dim
    )
    name = f"{num_layers} layers, {num_kv_heads} KV heads of {head_dim}"
    return PlannedModel(name=name, shape=shape, context_length=None, weight_bytes=None)


def read_model(path: str | None, weight_format: WeightFormat) -> PlannedModel:
    """A .gguf file or a Hugging Face folder; None: the default model. Reads metadata only.

    Raises ConfigError, as loading it would, for what is missing, damaged or of another architecture.
    """
    model_path = default_model_path() if path is None else Path(path)
    source: TensorSource
    if model_path.is_dir():
        source = folder = CheckpointFolder(model_path)
        config = config_from_hugging_face(
            folder.config,
            generation_config=folder.read_json("generation_config.json"),
            name=model_path.resolve().name,
            source=str(model_path / "config.json"),
        )
    elif model_path.is_file():
        source = file = GgufFile(model_path)
        config = config_from_gguf(file)
    else:
        raise ConfigError(f"{model_path}: no such file or folder; name a .gguf file or a model folder.")
    return PlannedModel(
        name=config.name,
        shape=config.attention_shape,
        context_length=config.context_length,
        weight_bytes=weight_bytes(source, config, weight_format),
    )


def weight_bytes(source: TensorSource, config: ModelConfig, weight_format: WeightFormat) -> int:
    """Bytes of the weights as a worker keeps them on a CPU.

    Matrices are kept for products in `weight_format`, int8 with a scale for each output feature. The
    embedding is kept for look-ups too: one that is tied to the output is there twice. All else is float32.
    """
    num_bytes = 0
    for name, shape in source.shapes().items():
        num_elements = math.prod(shape)
        is_embedding = name == "model.embed_tokens.weight"
        if is_embedding:
            num_bytes += num_elements * EMBEDDING_BYTES[weight_format]
        if is_embedding and not config.tie_word_embeddings:
            continue
        if len(shape) == 2:
            num_bytes += num_elements * PRODUCT_BYTES[weight_format]
            num_bytes += shape[0] * FLOAT_BYTES if weight_format == "int8" else 0
        else:
            num_bytes += num_elements * FLOAT_BYTES
    return num_bytes
