"""Step 2: where keys and values lie, and whether another order would be read faster here."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prefixcache_client.diagnosis_answers import PoolLayout, TensorPlace
from prefixcache_client.doctor.finding import Finding, Verdict

LEAST_TIMES_SLOWER = 1.3
"""An order that is read more slowly than the other one by less than this is as good."""
_PITFALL = "layout-against-kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFigures:
    """What was measured for step 2."""

    layout: PoolLayout
    asked_order: str | None
    """What the settings say; None when they could not be read."""
    seconds_by_order: tuple[Mapping[str, float], ...]
    """Of one decode step's attention in one layer, by the order of the pool; once for each measurement."""


def packed_strides(size: Sequence[int], element_bytes: int, order: str) -> tuple[int, ...] | None:
    """Bytes between neighbours in (layer, slot, head, element) of a tensor without gaps; None for an order
    that is not known."""
    layers, slots, heads, width = size
    match order:
        case "layer-first":
            strides = (slots * heads * width, heads * width, width, 1)
        case "head-first":
            strides = (slots * width, width, layers * slots * width, 1)
        case _:
            return None
    return tuple(stride * element_bytes for stride in strides)


def check_layout_map(figures: LayoutFigures) -> Finding:
    """Every tensor lies without gaps, in the order that was asked for."""
    layout = figures.layout
    evidence: dict[str, str | int | float] = {
        "order": layout.order,
        "attention": layout.attention,
        "token_bytes": layout.token_bytes,
    }
    for tensor in layout.tensors:
        evidence |= {f"{tensor.name}_{key}": value for key, value in _map_of(tensor).items()}
    wrong = [
        f"{tensor.name}: {_bytes_apart(tensor)}"
        for tensor in layout.tensors
        if tuple(tensor.strides) != packed_strides(tensor.size, tensor.element_bytes, layout.order)
    ]
    if figures.asked_order is not None and figures.asked_order != layout.order:
        wrong.insert(0, f"the settings ask for {figures.asked_order} and the pool is {layout.order}")
    if wrong:
        return Finding(
            step=2,
            name="layout map",
            verdict=Verdict.FAULT,
            sentence=f"The pool does not lie as its kernel reads it: {'; '.join(wrong)}.",
            evidence=evidence,
            pitfall=_PITFALL,
            advice="Give the pool the order that the kernel reads: --kv-layout layer-first.",
        )
    neighbours = "heads of a token" if layout.order == "layer-first" else "tokens of a head"
    return Finding(
        step=2,
        name="layout map",
        verdict=Verdict.HEALTHY,
        sentence=f"{layout.order}: neighbouring {neighbours} lie side by side, no bytes between them.",
        evidence=evidence,
    )


def check_layout_speed(figures: LayoutFigures) -> Finding:
    """Accuses only when the other order was faster in every measurement."""
    order = figures.layout.order
    ratios = [
        seconds[order] / min(other for name, other in seconds.items() if name != order)
        for seconds in figures.seconds_by_order
        if order in seconds and len(seconds) > 1 and all(value > 0 for value in seconds.values())
    ]
    if not ratios:
        return Finding(
            step=2,
            name="layout speed",
            verdict=Verdict.UNKNOWN,
            sentence="The two orders of the pool could not be compared on this machine.",
            evidence={},
        )
    ratio = statistics.median(ratios)
    evidence: dict[str, str | int | float] = {
        f"{name}_seconds": statistics.median(seconds[name] for seconds in figures.seconds_by_order)
        for name in figures.seconds_by_order[0]
    }
    evidence |= {"times_of_the_other_order": ratio, "num_measurements": len(ratios)}
    if min(ratios) >= LEAST_TIMES_SLOWER:
        return Finding(
            step=2,
            name="layout speed",
            verdict=Verdict.WARNING,
            sentence=f"Attention over a {order} pool takes {ratio:.1f} times as long as over the other.",
            evidence=evidence,
            pitfall=_PITFALL,
            advice="Start the worker with the other --kv-layout.",
        )
    return Finding(
        step=2,
        name="layout speed",
        verdict=Verdict.HEALTHY,
        sentence=f"Attention over a {order} pool takes {ratio:.2f} times as long as over the other.",
        evidence=evidence,
    )


def _map_of(tensor: TensorPlace) -> dict[str, str | int]:
    return {
        "dtype": tensor.dtype,
        "size": " x ".join(map(str, tensor.size)),
        "strides_bytes": " ".join(map(str, tensor.strides)),
        "address": f"0x{tensor.address:x}",
        "layer_gap_bytes": tensor.strides[0],
        "head_gap_bytes": tensor.strides[2],
    }


def _bytes_apart(tensor: TensorPlace) -> str:
    layer, slot, head, element = tensor.strides
    return (
        f"neighbouring layers, slots, heads and elements lie {layer:,}, {slot:,}, {head:,} and {element:,}"
        " bytes apart"
    )
