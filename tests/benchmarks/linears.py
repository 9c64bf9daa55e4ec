"""Products of the default model's layers in every weight format, against torch's packed fp32 product.

All layers are multiplied one after the other, so that weights come from memory as in a step. Speeds stand
next to what the machine does in the same run. Usage: linears.py [--rounds 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

import torch
from machine import peak_flops, read_bandwidth, seconds_of
from report import Row, print_rows
from rich.progress import track

from prefixcache_worker.model.linear import Weight, linear, pack_for_torch, pack_weight
from prefixcache_worker.model.native_linear import PackedWeight, prepare_native_linear
from prefixcache_worker.model.weight_format import WeightFormat

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""(out_features, in_features) of a layer's products"""
NUM_LAYERS = 30
NUM_ROWS = (1, 4, 16, 32, 64, 512)
FORMATS: tuple[WeightFormat, ...] = ("fp32", "bf16", "int8")
BARS = {"fp32": 0.95, "int8": 2.0}
"""Least speed against torch's fp32 product, from MIN_BAR_ROWS rows on; fp32 for every number of rows."""
MIN_BAR_ROWS = 16


def multiply_all(num_rows: int, weights: Sequence[tuple[int, Weight]]) -> float:
    """Seconds."""
    inputs = {in_features: torch.randn(num_rows, in_features) for in_features, _ in weights}
    return seconds_of(lambda: [linear(inputs[in_features], weight) for in_features, weight in weights])


def packed_weights(
    shapes: Sequence[tuple[int, int]], formats: Sequence[WeightFormat]
) -> dict[str, list[tuple[int, Weight]]]:
    """Weights of these shapes by way of multiplying them, each with its in_features.

    The ways are the formats, and "torch": float32 as oneDNN packs it.
    """
    plain = [torch.randn(shape) / shape[1] ** 0.5 for shape in shapes]

    def pack(weight_format: WeightFormat) -> list[tuple[int, Weight]]:
        return [(weight.shape[1], pack_weight(weight, weight_format)) for weight in plain]

    ways = {name: pack(name) for name in formats}
    return ways | {"torch": [(weight.shape[1], pack_for_torch(weight)) for weight in plain]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    args = parser.parse_args()
    prepare_native_linear()
    ways = packed_weights(SHAPES * NUM_LAYERS, FORMATS)
    num_weights = NUM_LAYERS * sum(out * depth for out, depth in SHAPES)
    bandwidth, peak, rows = read_bandwidth(), peak_flops(), []
    rows.append(Row(name="read bandwidth of memory", value=bandwidth / 1e9, unit="GB/s"))
    rows.append(Row(name="fp32 product in the caches", value=peak / 1e9, unit="GFLOP/s"))
    for num_rows in NUM_ROWS:
        rounds = [
            {way: multiply_all(num_rows, ways[way]) for way in ways}
            for _ in track(range(args.rounds), f"{num_rows} rows", transient=True)
        ]
        for name in FORMATS:
            ratios = [seconds["torch"] / seconds[name] for seconds in rounds]
            best = min(seconds[name] for seconds in rounds)
            speed = 2 * num_rows * num_weights / best
            num_bytes = sum(weight.num_bytes for _, weight in ways[name] if isinstance(weight, PackedWeight))
            share = (
                f"{num_bytes / best / bandwidth:.0%} of the bandwidth"
                if num_rows == 1
                else f"{speed / peak:.0%} of fp32"
            )
            bar = BARS.get(name) if name == "fp32" or num_rows >= MIN_BAR_ROWS else None
            rows.append(
                Row(
                    name=f"{name} products, {num_rows} rows",
                    value=statistics.median(ratios),
                    unit="times as fast as torch's fp32",
                    spread=f"{min(ratios):.2f} to {max(ratios):.2f}",
                    bar=None if bar is None else f">= {bar:g}",
                    holds=None if bar is None else statistics.median(ratios) >= bar,
                    note=f"{best * 1e3:.2f} ms for {NUM_LAYERS} layers, {speed / 1e9:.0f} GFLOP/s, {share}",
                )
            )
    print_rows(rows, args.json)


if __name__ == "__main__":
    main()
