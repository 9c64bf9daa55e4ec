"""The rows of one kind, keys or values, of every block."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from prefixcache_worker.attention.kv_format import SCALE_DTYPE, KvDtype, RowFormat
from prefixcache_worker.attention.layout import KvLayout, TensorPlace
from prefixcache_worker.attention.quantize import encode, pack_nibbles, row_scales, unpack_nibbles


class KvPool:
    """One tensor of rows and, where the format has them, one of scales that live in the rows' slots.

    An element is its stored number times `scales`, or times `fixed_scale`, or itself. Where it has
    come from does not show: what is stored depends on the row alone.
    """

    rows: torch.Tensor  # [num_layers, num_slots, num_kv_heads, head_dim]; int4: [..., head_dim / 2] uint8
    scales: torch.Tensor | None  # [num_layers, num_slots, num_kv_heads] float16
    fixed_scale: torch.Tensor | None  # [num_layers, num_kv_heads, head_dim] float32

    def __init__(
        self,
        layout: KvLayout,
        row_format: RowFormat,
        fixed_scale: torch.Tensor | None,  # [num_layers, num_kv_heads, head_dim] float32
        *,
        device: torch.device | str,
    ) -> None:
        """Requires `fixed_scale` exactly when the format has fixed scales."""
        assert (fixed_scale is not None) == row_format.has_fixed_scales
        self.layout = layout
        self.format = row_format
        self.rows = layout.allocate(self._row_width, row_format.dtype.storage, device)
        self.scales = layout.allocate(1, SCALE_DTYPE, device)[..., 0] if row_format.has_row_scales else None
        self.fixed_scale = None if fixed_scale is None else fixed_scale.to(device).contiguous()

    def tensors(self) -> Iterator[torch.Tensor]:
        """Everything that is stored slot by slot: [num_layers, num_slots, num_kv_heads, ...] each."""
        yield self.rows
        if self.scales is not None:
            yield self.scales

    def places(self, name: str) -> Iterator[TensorPlace]:
        """Maps of `tensors`, in the same order."""
        yield TensorPlace.of(f"{name}.rows", self.rows)
        if self.scales is not None:
            yield TensorPlace.of(f"{name}.scales", self.scales)

    @property
    def _row_width(self) -> int:
        return self.format.row_width(self.layout.shape.head_dim)

    def write(
        self,
        layer: int,
        slots: torch.Tensor,  # [num_tokens] int64, no slot twice
        rows: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    ) -> None:
        """Store rows. Cost: one pass over them; two more for codes.

        A row that is not finite reads back as NaN; a format that cannot keep it takes none:
        AssertionError.
        """
        max_code = self.format.dtype.max_code
        if max_code is None:
            self.rows[layer].index_copy_(0, slots, rows.to(self.rows.dtype))
            return
        rows = rows.float()
        if self.scales is not None:
            scales = row_scales(rows, max_code)
            self.scales[layer].index_copy_(0, slots, scales)
            codes = encode(rows, scales.float().unsqueeze(-1), max_code)
        else:
            assert self.fixed_scale is not None
            assert rows.isfinite().all(), f"layer {layer}: a row to store is not finite"
            codes = encode(rows, self.fixed_scale[layer], max_code)
        packed = pack_nibbles(codes) if self.format.dtype is KvDtype.INT4 else codes
        self.rows[layer].index_copy_(0, slots, packed)

    def read(
        self, layer: int, slots: torch.Tensor | slice
    ) -> torch.Tensor:  # [*slots.shape, num_kv_heads, head_dim] float32
        """The elements of some slots. A slice of float32 rows is a view; all else is a copy."""
        scales = None
        if self.scales is not None:
            scales = self.scales[layer, slots].unsqueeze(-1)
        elif self.fixed_scale is not None:
            scales = self.fixed_scale[layer]
        return self._decoded(self.rows[layer, slots], scales)

    def read_heads(
        self,
        layer: int,
        slots: torch.Tensor,  # [num_sequences, num_kv_heads, num_rows] int64
    ) -> torch.Tensor:  # [num_sequences, num_kv_heads, num_rows, head_dim] float32
        """The elements of some slots that are other ones for every head. Copies."""
        heads = torch.arange(slots.shape[1], device=slots.device)[:, None]
        scales = None
        if self.scales is not None:
            scales = self.scales[layer, slots, heads, None]
        elif self.fixed_scale is not None:
            scales = self.fixed_scale[layer, :, None]
        return self._decoded(self.rows[layer, slots, heads], scales)

    def _decoded(
        self,
        stored: torch.Tensor,  # [..., row width]
        scales: torch.Tensor | None,  # broadcasts to [..., head_dim]
    ) -> torch.Tensor:  # [..., head_dim] float32
        if scales is None:
            return stored.float()
        codes = unpack_nibbles(stored) if self.format.dtype is KvDtype.INT4 else stored
        return codes.float().mul_(scales)
