"""Products by a compiled kernel: a row's result is the same, bit for bit, whatever other rows there are."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  (the name every torch program gives it)

from prefixcache_worker.model.weight_format import WeightFormat, quantize_channels
from prefixcache_worker.native_library import load_library

SOURCE = Path(__file__).with_name("linear_kernel.cpp")


class _Weight(ctypes.Structure):
    """The kernel's `Weight`."""

    _fields_ = (
        ("panels", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("out_features", ctypes.c_int64),
        ("in_features", ctypes.c_int64),
    )


@cache
def _library() -> ctypes.CDLL:
    library = load_library(SOURCE)
    library.panel_width.restype = library.group_size.restype = ctypes.c_int64
    for multiply in (library.multiply_fp32, library.multiply_bf16, library.multiply_int8):
        multiply.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 2
        multiply.restype = None
    return library


def prepare_native_linear() -> None:
    """Build and load the kernel now rather than with the first weight. Raises NativeLibraryError."""
    _library()


class PackedWeight:
    """A weight in the kernel's panels. Holds `weight_format`'s bytes and nothing else of the weight.

    - fp32: y = sum over k of x[k] w[k].
    - bf16: the same with x and w rounded to bfloat16, summed in float32.
    - int8: w[k] is s q[k] as `quantize_channels` says. x is cut into groups of 64; a group is t a[k] with
      t = max |x| / 127 and a[k] = x[k] / t rounded. y = s * sum over groups of t * (sum of a[k] q[k]), the
      inner sum in exact integers, the outer one in float32.

    Sums run over k in its order. A NaN or infinite input makes its row NaN or infinite.
    """

    def __init__(
        self,
        weight: torch.Tensor,  # [out_features, in_features] float32 on a CPU
        weight_format: WeightFormat,
    ) -> None:
        """Copies the weight. Requires: `prepare_native_linear` succeeds."""
        library = _library()
        out_features, in_features = weight.shape
        self._scales: torch.Tensor | None = None
        if weight_format == "fp32":
            self._panels, self._scratch_row_bytes = _panels(weight, step=1), 0
        elif weight_format == "bf16":
            self._panels = _panels(weight.bfloat16(), step=2)
            self._scratch_row_bytes = 2 * (in_features + in_features % 2)
        else:
            group_size = int(library.group_size())
            values, self._scales = quantize_channels(weight)
            self._panels = _panels((values + 128).byte(), step=4, depth_multiple=group_size, padding=128)
            self._scratch_row_bytes = -(-in_features // group_size) * (group_size + 8)
        self._multiply = getattr(library, f"multiply_{weight_format}")
        self._weight = _Weight(
            panels=self._panels.data_ptr(),
            scales=None if self._scales is None else self._scales.data_ptr(),
            out_features=out_features,
            in_features=in_features,
        )

    @property
    def num_bytes(self) -> int:
        """Memory of the packed weight."""
        return self._panels.nbytes + (0 if self._scales is None else self._scales.nbytes)

    def multiply(
        self,
        inputs: torch.Tensor,  # [num_rows, in_features] float32
    ) -> torch.Tensor:  # [num_rows, out_features] float32
        """Each row times the weight."""
        num_rows, in_features = inputs.shape
        assert in_features == self._weight.in_features
        assert inputs.dtype == torch.float32
        inputs = inputs.contiguous()
        outputs = torch.empty(num_rows, self._weight.out_features)
        scratch = outputs  # which fp32 needs none of
        if self._scratch_row_bytes:
            scratch = torch.empty(num_rows * self._scratch_row_bytes, dtype=torch.uint8)
        self._multiply(
            ctypes.addressof(self._weight),
            inputs.data_ptr(),
            outputs.data_ptr(),
            scratch.data_ptr(),
            num_rows,
            torch.get_num_threads(),
        )
        return outputs


def _panels(
    weight: torch.Tensor,  # [out_features, in_features]
    *,
    step: int,
    depth_multiple: int | None = None,
    padding: int = 0,
) -> torch.Tensor:  # [num_panels, depth / step, panel_width, step]
    """The order in which the kernel reads a weight; see there."""
    out_features, in_features = weight.shape
    width = int(_library().panel_width())
    fill = (0, -in_features % (depth_multiple or step), 0, -out_features % width)
    padded = F.pad(weight, fill, value=padding) if any(fill) else weight
    return padded.reshape(-(-out_features // width), width, -1, step).transpose(1, 2).contiguous()
