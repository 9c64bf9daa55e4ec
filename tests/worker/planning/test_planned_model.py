"""What is read of a model without its tensors, against the model that is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_checkpoint import save_tiny_checkpoint, save_tiny_gguf, tiny_transformers_model

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.loader import load_model
from prefixcache_worker.model.native_linear import PackedWeight
from prefixcache_worker.planning.planned_model import read_model


def held_bytes(value: Any) -> int:
    """Bytes of every tensor below a value."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, PackedWeight):
        return value.num_bytes
    if isinstance(value, tuple):
        return sum(map(held_bytes, value))
    slots = getattr(value, "__slots__", ())
    return sum(held_bytes(getattr(value, name)) for name in slots)


@pytest.mark.parametrize("weight_format", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_weights_take_what_is_planned(tmp_path: Path, weight_format: Any, tied: bool) -> None:
    # Sizes of whole panels, whatever their width on this machine.
    sizes = {"hidden_size": 192, "intermediate_size": 192, "vocab_size": 384}
    sizes |= {"num_attention_heads": 8, "num_key_value_heads": 8}
    model = tiny_transformers_model("llama", tie_word_embeddings=tied, **sizes)
    folder = save_tiny_checkpoint(tmp_path, model)

    planned = read_model(str(folder), weight_format)

    loaded = load_model(str(folder), weight_format=weight_format)
    assert planned.weight_bytes == held_bytes(loaded.model._weights)  # type: ignore[attr-defined]
    assert planned.shape == loaded.config.attention_shape
    assert planned.context_length == loaded.config.context_length


def test_a_gguf_file_is_planned_like_the_folder_it_came_from(tmp_path: Path) -> None:
    model = tiny_transformers_model()
    folder = save_tiny_checkpoint(tmp_path / "folder", model)
    file = save_tiny_gguf(tmp_path / "tiny.gguf", model)

    from_file, from_folder = read_model(str(file), "fp32"), read_model(str(folder), "fp32")

    assert (from_file.shape, from_file.weight_bytes) == (from_folder.shape, from_folder.weight_bytes)
    assert (from_file.name, from_folder.name) == ("tiny", "folder")


def test_the_default_model() -> None:
    planned = read_model(None, "bf16")
    assert planned.shape.num_layers == 30
    assert planned.context_length == 8192


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.gguf: no such file or folder"):
        read_model(str(tmp_path / "nothing.gguf"), "fp32")
