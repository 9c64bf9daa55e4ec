"""What a row of keys or values becomes in the pool: the type of its elements and where its scales are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.model import AttentionShape

SCALE_DTYPE = torch.float16
"""Of the scales that are stored with the rows."""


class KvDtype(Enum):
    """Type of the elements of a row. The integers are codes that a scale multiplies."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    """Codes -127 to 127, one to a byte."""
    INT4 = "int4"
    """Codes -7 to 7, two to a byte."""

    @property
    def storage(self) -> torch.dtype:
        """Type of the tensor that holds them."""
        return _STORAGE[self]

    @property
    def max_code(self) -> int | None:
        """The largest code; the smallest is its negative. None: the elements are numbers themselves."""
        return _MAX_CODES.get(self)


_STORAGE = {
    KvDtype.FP32: torch.float32,
    KvDtype.FP16: torch.float16,
    KvDtype.BF16: torch.bfloat16,
    KvDtype.INT8: torch.int8,
    KvDtype.INT4: torch.uint8,
}
_MAX_CODES = {KvDtype.INT8: 127, KvDtype.INT4: 7}


class KvScales(Enum):
    """Which elements share one scale; keys and values never do.

    Every choice depends on the row's own content or on constants of the pool, never on its neighbours:
    so a row has the same bytes whoever computes it, and can be shared.
    """

    TOKEN_HEAD = "token-head"
    """Each head of each row has its own, stored with the row."""
    HEAD = "head"
    """One for each head of each layer: constants of the pool."""
    TENSOR = "tensor"
    """One for each layer: constants of the pool."""
    CHANNEL = "channel"
    """Keys: one for each element of each head of each layer, constants of the pool; values: as TOKEN_HEAD.

    Keys have channels that are large in every token, values have not (KIVI, Liu et al. 2024).
    """


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How one of the two pools, of keys or of values, stores its rows."""

    dtype: KvDtype
    scales: KvScales | None = None
    """None exactly when the elements are numbers themselves."""

    def __post_init__(self) -> None:
        assert (self.scales is None) == (self.dtype.max_code is None)

    @property
    def has_row_scales(self) -> bool:
        """Whether each row carries scales of its own."""
        return self.scales is KvScales.TOKEN_HEAD

    @property
    def has_fixed_scales(self) -> bool:
        """Whether the scales are constants of the pool."""
        return self.scales is not None and not self.has_row_scales

    def row_width(self, head_dim: int) -> int:
        """Stored elements of one head of a row."""
        return head_dim // 2 if self.dtype is KvDtype.INT4 else head_dim

    def head_bytes(self, head_dim: int) -> int:
        """Bytes that one head of one row takes, its scale included."""
        num_bytes = self.row_width(head_dim) * self.dtype.storage.itemsize
        return num_bytes + (SCALE_DTYPE.itemsize if self.has_row_scales else 0)


@dataclass(frozen=True, slots=True)
class KvFormat:
    """How keys and values are stored."""

    dtype: KvDtype
    scales: KvScales | None = None
    """None exactly when the elements are numbers themselves."""

    @property
    def keys(self) -> RowFormat:
        return RowFormat(self.dtype, self.scales)

    @property
    def values(self) -> RowFormat:
        return RowFormat(self.dtype, KvScales.TOKEN_HEAD if self.scales is KvScales.CHANNEL else self.scales)

    @property
    def name(self) -> str:
        """What people read: "fp16", "int8/token-head"."""
        return self.dtype.value if self.scales is None else f"{self.dtype.value}/{self.scales.value}"

    def block_bytes(self, shape: AttentionShape, block_size: int) -> int:
        """Bytes of one block: keys, values and the scales that go with the rows, in all layers."""
        head_bytes = self.keys.head_bytes(shape.head_dim) + self.values.head_bytes(shape.head_dim)
        return block_size * shape.num_layers * shape.num_kv_heads * head_bytes


FP32 = KvFormat(KvDtype.FP32)
"""Rows as the model makes them."""


def choose_format(dtype: str, scales: str | None, shape: AttentionShape) -> KvFormat:
    """The format of two settings for a model; integers without a choice of scales take token-head.

    Raises ConfigError when the two, or the format and the model, do not go together.
    """
    kv_dtype = KvDtype(dtype)
    if kv_dtype.max_code is None:
        if scales is not None:
            raise ConfigError(
                f"--kv-scales {scales}: only int8 and int4 have scales, not --kv-dtype {dtype}; drop one"
            )
        return KvFormat(kv_dtype)
    if kv_dtype is KvDtype.INT4 and shape.head_dim % 2:
        raise ConfigError(
            f"--kv-dtype int4: it packs two elements to a byte, and the model's heads have {shape.head_dim}; "
            "use int8"
        )
    return KvFormat(kv_dtype, KvScales.TOKEN_HEAD if scales is None else KvScales(scales))
