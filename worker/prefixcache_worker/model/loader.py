"""One call from a path to everything the worker needs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.chat_template import ChatTemplate
from prefixcache_worker.model.checkpoint_folder import CheckpointFolder
from prefixcache_worker.model.config import ModelConfig
from prefixcache_worker.model.config_gguf import config_from_gguf
from prefixcache_worker.model.config_hugging_face import config_from_hugging_face
from prefixcache_worker.model.decoder import Decoder
from prefixcache_worker.model.default_model import default_model_path
from prefixcache_worker.model.gguf_file import GgufFile
from prefixcache_worker.model.model import Model
from prefixcache_worker.model.tokenizer import Tokenizer
from prefixcache_worker.model.tokenizer_files import tokenizer_from_gguf, tokenizer_from_json
from prefixcache_worker.model.weight_format import WeightFormat
from prefixcache_worker.model.weights import TensorSource, build_id, load_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run."""

    config: ModelConfig
    model: Model
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    """None: the model's files hold no template, so there are no chat prompts."""
    build: str
    """Changes whenever cached KV of another build would be wrong."""


def load_model(
    path: str | None = None, *, device: str = "cpu", weight_format: WeightFormat = "fp32"
) -> LoadedModel:
    """Load a .gguf file or a Hugging Face folder with safetensors; None loads the default model.

    Weights are kept on `device` in `weight_format`. Raises ConfigError, naming the file and what to do, for
    anything that is missing, damaged or of another architecture.
    """
    model_path = default_model_path() if path is None else Path(path)
    target = _checked_device(device, weight_format)
    if model_path.is_dir():
        return _load_folder(model_path, target, weight_format)
    if not model_path.is_file():
        raise ConfigError(f"{model_path}: no such file or folder; name a .gguf file or a model folder.")
    return _load_gguf(model_path, target, weight_format)


def _load_gguf(path: Path, device: torch.device, weight_format: WeightFormat) -> LoadedModel:
    file = GgufFile(path)
    source, metadata = file.description, file.metadata
    config = config_from_gguf(file)
    tokenizer = tokenizer_from_gguf(metadata, config, source=source)
    tokens = metadata["tokenizer.ggml.tokens"]
    special_tokens = {
        f"{name}_token": tokens[metadata[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")]
        if f"tokenizer.ggml.{key}_token_id" in metadata
    }
    template = metadata.get("tokenizer.chat_template")
    return _assemble(file, config, tokenizer, template, special_tokens, device, weight_format)


def _load_folder(path: Path, device: torch.device, weight_format: WeightFormat) -> LoadedModel:
    folder = CheckpointFolder(path)
    config = config_from_hugging_face(
        folder.config,
        generation_config=folder.read_json("generation_config.json"),
        name=path.resolve().name,
        source=str(path / "config.json"),
    )
    settings = folder.read_json("tokenizer_config.json")
    tokenizer = tokenizer_from_json(path / "tokenizer.json", settings, config)
    template_path = path / "chat_template.jinja"
    template = (
        template_path.read_text(encoding="utf-8")
        if template_path.is_file()
        else _default_template(settings.get("chat_template"))
    )
    special_tokens = {
        name: value["content"] if isinstance(value, dict) else value
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if (value := settings.get(name)) is not None
    }
    return _assemble(folder, config, tokenizer, template, special_tokens, device, weight_format)


def _assemble(
    tensors: TensorSource,
    config: ModelConfig,
    tokenizer: Tokenizer,
    template: str | None,
    special_tokens: Mapping[str, str],
    device: torch.device,
    weight_format: WeightFormat,
) -> LoadedModel:
    source = tensors.description
    if tokenizer.vocabulary_size > config.vocabulary_size:
        raise ConfigError(
            f"{source}: the tokenizer has {tokenizer.vocabulary_size} tokens, the model only "
            f"{config.vocabulary_size}; they do not belong together."
        )
    chat_template = template and ChatTemplate(template, special_tokens=special_tokens, source=source)
    return LoadedModel(
        config=config,
        model=Decoder(config, load_weights(tensors, config, device=device, weight_format=weight_format)),
        tokenizer=tokenizer,
        chat_template=chat_template or None,
        build=build_id(config, tensors.weight_paths, weight_format),
    )


def _default_template(template: Any) -> str | None:
    """Older files hold a list of named templates instead of one."""
    named = template if isinstance(template, list) else [{"name": "default", "template": template}]
    return next((entry["template"] for entry in named if entry["name"] == "default"), None)


def _checked_device(device: str, weight_format: WeightFormat) -> torch.device:
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no GPU; use --device cpu.")
    if device.startswith("cuda") and weight_format == "int8":
        raise ConfigError("--weights int8: only a CPU computes with it; use --weights bf16 on a GPU.")
    return torch.device(device)
