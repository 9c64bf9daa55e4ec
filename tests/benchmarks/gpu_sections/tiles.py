"""The kernel's shapes side by side, and what the launches and the plan take."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial

import torch
from report import Row

from gpu_sections.cases import BLOCK_SIZE, Case, Scope, our_run, stopwatch
from gpu_sections.decode import DRY_CASES, QUICK_CASES
from prefixcache_worker.attention.planner import plan_attention
from prefixcache_worker.attention.triton.backend import TritonAttention
from prefixcache_worker.attention.triton.paged_attention import paged_attention
from prefixcache_worker.attention.triton.partials import merge_partials
from prefixcache_worker.attention.triton.tile import TileShape

DRY_TILES = (TileShape(16, 32, 4, 2),)
QUICK_TILES = (TileShape(16, 64, 4, 3), TileShape(64, 64, 4, 3), TileShape(64, 64, 8, 3))
FULL_TILES = (
    *QUICK_TILES,
    TileShape(16, 64, 2, 4),
    TileShape(16, 32, 4, 4),
    TileShape(32, 64, 4, 3),
    TileShape(64, 64, 8, 2),
    TileShape(64, 64, 8, 4),
    TileShape(64, 32, 4, 4),
    TileShape(128, 64, 8, 3),
)


def tiles(scope: Scope) -> Iterator[Row]:
    """Every tile over a few cases, shared and unshared."""
    full = (*QUICK_CASES, Case(1024, 64, 128, 4), Case(16384, 16, 64, 3), Case(4096, 32, 128, 4, kv="int8"))
    for case in scope.choose(DRY_CASES, QUICK_CASES[:1], full):
        spans, query = case.spans(), case.query(scope.device)
        store = case.store(spans, scope.device)
        num_layers = store.layout.shape.num_layers
        for tile in scope.choose(DRY_TILES, QUICK_TILES, FULL_TILES):
            for share in (True, False):
                plan = plan_attention(spans, BLOCK_SIZE, share=share)
                try:
                    seconds = stopwatch(our_run(plan, store, query, tile), scope.device)()
                except Exception as error:
                    print(f"FAILED {case} {tile}: {error!r}", file=sys.stderr)
                    continue
                yield Row(
                    name=f"{case}, {'shared' if share else 'unshared'}, tile {'/'.join(map(str, tile))}",
                    value=seconds / num_layers * 1e6,
                    unit="us",
                )
        start = time.perf_counter()
        plan = plan_attention(spans, BLOCK_SIZE)
        planned = time.perf_counter()
        attention = TritonAttention(plan, store).prepare()
        if scope.device.type == "cuda":
            torch.cuda.synchronize()
        tabled = time.perf_counter()
        yield Row(name=f"{case}, plan on the CPU", value=(planned - start) * 1e6, unit="us")
        yield Row(name=f"{case}, table and upload", value=(tabled - planned) * 1e6, unit="us")
        arguments = store.keys, store.values, 0, attention.table, attention.partials, attention.tile
        output, scale = torch.empty_like(query), store.layout.shape.scale
        runs = (
            partial(paged_attention, query, *arguments, scale=scale),
            partial(merge_partials, attention.partials, attention.table, output),
        )
        read, merge = (stopwatch(run, scope.device)() for run in runs)
        yield Row(name=f"{case}, read alone, its rows in cache", value=read * 1e6, unit="us")
        yield Row(name=f"{case}, merge alone", value=merge * 1e6, unit="us")
