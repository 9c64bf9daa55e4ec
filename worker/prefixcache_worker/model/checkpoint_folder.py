"""A Hugging Face folder: its JSON files and its safetensors tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from prefixcache_worker.errors import ConfigError

_INDEX_NAME = "model.safetensors.index.json"
_SINGLE_NAME = "model.safetensors"


class CheckpointFolder:
    """A folder with config.json and one safetensors file or several with an index. A `TensorSource`."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if a file is missing, cut short, or contradicts the index."""
        self.path = path
        if not (path / "config.json").is_file():
            raise ConfigError(
                f"{path}: not a model folder, it has no config.json; name a .gguf file or a model folder."
            )
        self.config = self.read_json("config.json")
        index = self.read_json(_INDEX_NAME)
        file_names = sorted(set(index["weight_map"].values())) if index else [_SINGLE_NAME]
        self.weight_paths = [path / name for name in file_names]
        self._files: dict[str, Any] = {}  # tensor name to the open file that holds it
        for weight_path in self.weight_paths:
            file = _open(weight_path)
            self._files.update(dict.fromkeys(file.keys(), file))

    @property
    def description(self) -> str:
        return str(self.path)

    def read_json(self, name: str) -> Mapping[str, Any]:
        """Contents of a JSON file in the folder; an empty mapping if it is absent. Raises ConfigError."""
        path = self.path / name
        if not path.is_file():
            return {}
        try:
            contents = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:  # too deep a nest, too
            raise ConfigError(f"{path}: not valid JSON ({error}); fetch the file again.") from error
        if not isinstance(contents, dict):
            raise ConfigError(f"{path}: not a JSON object; fetch the file again.")
        return contents

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor."""
        return {name: tuple(file.get_slice(name).get_shape()) for name, file in self._files.items()}

    def name_in_file(self, name: str) -> str:
        return name

    def load(self, name: str) -> torch.Tensor:
        """The tensor in float32."""
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor.float()


def _open(path: Path) -> Any:
    if not path.is_file():
        raise ConfigError(f"{path}: missing; the model folder is incomplete, fetch it again.")
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ConfigError(
            f"{path}: not a complete safetensors file ({error}); it is cut short or damaged, fetch it again."
        ) from error
