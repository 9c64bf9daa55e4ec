"""A GGUF file: its metadata and its tensors under the names the rest of the loader uses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import torch

from prefixcache_worker.errors import ConfigError

_MAGIC = b"GGUF"
_ROPE_DIVISORS_NAME = "rope_freqs.weight"
_TENSOR_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_TENSOR_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA3_NORM_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


class GgufFile:
    """An open GGUF file, mapped into memory. A `TensorSource` whose names are Hugging Face's."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if the file is no GGUF file or is cut short."""
        self.path = path
        with path.open("rb") as file:
            first_bytes = file.read(len(_MAGIC))
        if not _MAGIC.startswith(first_bytes):
            raise ConfigError(f"{path}: not a GGUF file; name a .gguf file or a model folder.")
        try:
            reader = gguf.GGUFReader(path)
            metadata = {name: field.contents() for name, field in reader.fields.items()}
        except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path}: not a complete GGUF file ({error}); it is cut short or damaged, fetch it again."
            ) from error
        self.metadata: Mapping[str, Any] = metadata
        is_gemma = metadata.get("general.architecture") == "gemma3"
        self._layer_names = _LAYER_TENSOR_NAMES | (_GEMMA3_NORM_NAMES if is_gemma else {})
        self._tensors = {self._common_name(tensor.name): tensor for tensor in reader.tensors}

    @property
    def description(self) -> str:
        return str(self.path)

    @property
    def weight_paths(self) -> list[Path]:
        return [self.path]

    @property
    def rope_divisors(self) -> list[float] | None:
        """What each rotary frequency is divided by, fastest first: configuration in the form of a tensor."""
        has_divisors = _ROPE_DIVISORS_NAME in self._tensors
        return self.load(_ROPE_DIVISORS_NAME).tolist() if has_divisors else None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every weight, slowest dimension first as in torch; the file has the fastest first."""
        return {
            name: tuple(int(n) for n in reversed(tensor.shape))
            for name, tensor in self._tensors.items()
            if name != _ROPE_DIVISORS_NAME
        }

    def name_in_file(self, name: str) -> str:
        return str(self._tensors[name].name) if name in self._tensors else self._gguf_name(name)

    def load(self, name: str) -> torch.Tensor:
        """The tensor, dequantised to float32. Raises ConfigError for a quantisation gguf cannot undo."""
        tensor = self._tensors[name]
        try:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ConfigError(
                f"{self.path}: tensor {tensor.name} is stored as {tensor.tensor_type.name}, which cannot be "
                "read; use a file in another quantisation."
            ) from error
        return torch.tensor(values, dtype=torch.float32)  # copies: unquantised values still lie in the file

    def _common_name(self, gguf_name: str) -> str:
        stem, _, kind = gguf_name.rpartition(".")
        if stem.startswith("blk."):
            _, layer, part = stem.split(".", 2)
            return f"model.layers.{layer}.{self._layer_names.get(part, part)}.{kind}"
        return f"{_TENSOR_NAMES.get(stem, stem)}.{kind}"

    def _gguf_name(self, common_name: str) -> str:
        stem, _, kind = common_name.rpartition(".")
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            return f"blk.{layer}.{_key_of(self._layer_names, part)}.{kind}"
        return f"{_key_of(_TENSOR_NAMES, stem)}.{kind}"


def _key_of(names: dict[str, str], value: str) -> str:
    return next(key for key, candidate in names.items() if candidate == value)
