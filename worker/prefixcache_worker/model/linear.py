"""Matrix products with weights that are packed once for the machine."""

from __future__ import annotations

import logging
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812  (the name every torch program gives it)

from prefixcache_worker.model.native_linear import PackedWeight, prepare_native_linear
from prefixcache_worker.model.weight_format import WeightFormat, rounded_weight
from prefixcache_worker.native_library import NativeLibraryError
from prefixcache_worker.profiler_range import PRODUCT, profiler_range

HAS_ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""torch's own packed product on a CPU, by oneDNN. Not public: a torch without it falls back to `mm`."""

Weight = torch.Tensor | PackedWeight
"""What `pack_weight` makes of a weight; a plain tensor [out_features, in_features] is one too."""

logger = logging.getLogger(__name__)


@cache
def products_are_batch_invariant() -> bool:
    """Whether a CPU's products do not depend, in any bit, on which rows are computed together.

    They do not where the kernel can be built; torch's products do. Builds it if need be (seconds, once).
    """
    try:
        prepare_native_linear()
    except NativeLibraryError as error:
        logger.info("products by torch, whose last bits depend on the batch: %s", error)
        return False
    return True


def pack_weight(
    weight: torch.Tensor,  # [out_features, in_features] float32
    weight_format: WeightFormat = "fp32",
) -> Weight:
    """The weight in whatever form `linear` is fastest with; only `linear` can read it. Copies it once.

    On a CPU, panels of our kernel, or without a compiler `pack_for_torch`. On another device a tensor in
    float32, or in bfloat16 for "bf16"; there is no "int8" there.
    """
    if weight.device.type != "cpu":
        assert weight_format != "int8"
        return weight if weight_format == "fp32" else weight.bfloat16()
    if products_are_batch_invariant():
        return PackedWeight(weight, weight_format)
    return pack_for_torch(weight, weight_format)


def pack_for_torch(
    weight: torch.Tensor,  # [out_features, in_features] float32 on a CPU
    weight_format: WeightFormat = "fp32",
) -> torch.Tensor:
    """The values that the format can hold, in float32 and blocked by oneDNN for the machine's vectors."""
    weight = rounded_weight(weight, weight_format)
    if HAS_ONEDNN:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        return packed
    return weight


def linear(
    inputs: torch.Tensor,  # [num_rows, in_features] float32
    weight: Weight,  # [out_features, in_features]
) -> torch.Tensor:  # [num_rows, out_features] float32
    """Each row times `weight`.

    On a CPU a plain weight stands on the left: BLAS then walks its rows as they lie in memory, which for a
    few rows is faster than `F.linear`.
    """
    with profiler_range(PRODUCT):
        return _product(inputs, weight)


def _product(inputs: torch.Tensor, weight: Weight) -> torch.Tensor:
    if isinstance(weight, PackedWeight):
        return weight.multiply(inputs)
    if weight.is_mkldnn:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, None, "none", [], "")
        return product
    if weight.device.type != "cpu":
        return F.linear(inputs.to(weight.dtype), weight).float()
    return torch.mm(weight, inputs.to(weight.dtype).T).T.float()
