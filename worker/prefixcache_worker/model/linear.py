"""Matrix products with weights that are packed once for the machine."""

from __future__ import annotations

import torch

HAS_ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""torch's own packed product on a CPU, by oneDNN. Not public: a torch without it falls back to `mm`."""


def pack_weight(
    weight: torch.Tensor,  # [out_features, in_features]
) -> torch.Tensor:
    """The weight in whatever form `linear` is fastest with; only `linear` can read it. Copies it once.

    On a CPU, blocked by oneDNN for its widest vectors; elsewhere, and in other types, as it is.
    """
    if HAS_ONEDNN and weight.device.type == "cpu" and weight.dtype == torch.float32:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        return packed
    return weight


def linear(
    inputs: torch.Tensor,  # [num_rows, in_features]
    weight: torch.Tensor,  # [out_features, in_features], from `pack_weight`
) -> torch.Tensor:  # [num_rows, out_features]
    """Each row times `weight`.

    Without packing the weight stands on the left: BLAS then walks its rows as they lie in memory, which for
    a few rows is faster than `F.linear`.
    """
    if weight.is_mkldnn:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, None, "none", [], "")
        return product
    return torch.mm(weight, inputs.T).T
