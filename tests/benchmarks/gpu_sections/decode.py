"""Microseconds of one layer's attention: ours shared and unshared, and the peers'."""

from __future__ import annotations

import random
import statistics
import sys
import traceback
from collections.abc import Callable, Iterator

import torch
from report import Row

from gpu_sections.cases import (
    BLOCK_SIZE,
    FORMATS,
    Case,
    Scope,
    num_blocks_of,
    our_run,
    random_store,
    stopwatch,
)
from gpu_sections.peers import flashinfer_run, sdpa_run
from prefixcache_worker.attention.plan import SequenceSpan
from prefixcache_worker.attention.planner import plan_attention

DRY_CASES = (Case(64, 2, 16, 2, num_kv_heads=1, kv="fp16", tail=16),)
QUICK_CASES = (Case(4096, 32, 128, 4), Case(1024, 16, 64, 3), Case(16384, 64, 128, 8))
FULL_CASES = (
    *(
        Case(prefix, num_sequences, head_dim, group_size)
        for head_dim, group_size in ((128, 4), (64, 3), (128, 8))
        for prefix in (128, 512, 1024, 2048, 8192, 16384)
        for num_sequences in (32, 128)
    ),
    Case(4096, 32, 128, 4, kv="fp16"),
    Case(4096, 32, 128, 4, kv="int8"),
    Case(4096, 32, 128, 4, kv="int4"),
)
NUM_ROUNDS = 5


def decode(scope: Scope) -> Iterator[Row]:
    """One prefix for all, over prefixes, batches, heads and formats."""
    for case in scope.choose(DRY_CASES, QUICK_CASES, FULL_CASES):
        try:
            yield from time_case(case, scope)
        except Exception:
            print(f"FAILED {case}", file=sys.stderr)
            traceback.print_exc()
        if scope.device.type == "cuda":
            torch.cuda.empty_cache()


def time_case(case: Case, scope: Scope) -> Iterator[Row]:
    """Our time, and the others' in the same rounds, one after the other."""
    spans, query = case.spans(), case.query(scope.device)
    store = case.store(spans, scope.device)
    num_layers = store.layout.shape.num_layers
    shared, unshared = (plan_attention(spans, BLOCK_SIZE, share=share) for share in (True, False))
    watches = {
        "shared": (stopwatch(our_run(shared, store, query), scope.device), num_layers),
        "unshared": (stopwatch(our_run(unshared, store, query), scope.device), num_layers),
    }
    for name, make in (("torch SDPA", sdpa_run), ("FlashInfer cascade", flashinfer_run)):
        try:
            run, num_runs = make(case, spans, scope.device)
            watches[name] = (stopwatch(run, scope.device), num_runs)
        except ImportError:
            pass  # not installed here
        except Exception:
            print(f"FAILED {name}: {case}", file=sys.stderr)
            traceback.print_exc()
    rounds = [
        {name: watch() / num_runs for name, (watch, num_runs) in watches.items()} for _ in range(NUM_ROUNDS)
    ]
    flops = 4 * shared.num_rows_unshared * case.num_query_heads * case.head_dim
    for name in watches:
        seconds = statistics.median(times[name] for times in rounds)
        ratios = [times[name] / times["shared"] for times in rounds]
        rate = (
            f"{shared.num_rows_read * case.row_bytes / seconds * 1e-9:.0f} GB/s, "
            f"{flops / seconds * 1e-12:.0f} TFLOP/s"
        )
        yield Row(
            name=f"{case}, {name}",
            value=seconds * 1e6,
            unit="us",
            spread=f"{min(ratios):.2f} to {max(ratios):.2f}",
            note=rate if name == "shared" else f"{statistics.median(ratios):.2f} times ours",
        )


def ratios(scope: Scope) -> Iterator[Row]:
    """What the kernels have to reach against our own unshared path: mixed batches, growth, smaller rows."""
    base = scope.choose(DRY_CASES[0], Case(2048, 24, 128, 4), Case(2048, 24, 128, 4))
    groups, alone = scope.choose((1, 1), (4, 32), (4, 32))
    spans = mixed_spans(base, groups, alone)
    store = random_store(base.shape, 1, num_blocks_of(spans), FORMATS[base.kv], scope.device)
    query = torch.randn(len(spans), base.num_query_heads, base.head_dim, device=scope.device).to(base.dtype)
    runs = [our_run(plan_attention(spans, BLOCK_SIZE, share=share), store, query) for share in (False, True)]
    yield ratio_row(
        scope, f"{groups} groups of {base.num_sequences} and {alone} alone, unshared over shared", runs, 3.0
    )

    short, long = scope.choose(
        (DRY_CASES[0], DRY_CASES[0]._replace(prefix=128)),
        (Case(1024, 64, 128, 4), Case(16384, 64, 128, 4)),
        (Case(1024, 64, 128, 4), Case(16384, 64, 128, 4)),
    )
    yield ratio_row(
        scope, "prefix 16 times as long, time over time", [run_of(c, scope) for c in (long, short)]
    )
    tails = scope.choose(DRY_CASES[0], Case(0, 32, 128, 4, tail=8192), Case(0, 32, 128, 4, tail=8192))
    bf16, int8 = (run_of(tails._replace(kv=kv), scope) for kv in ("bf16", "int8"))
    yield ratio_row(scope, "unshared rows in bf16 over int8", [bf16, int8], 1.5)


def run_of(case: Case, scope: Scope) -> Callable[[], None]:
    """One layer's shared reads of a case."""
    spans = case.spans()
    store = random_store(case.shape, 1, num_blocks_of(spans), FORMATS[case.kv], scope.device)
    return our_run(plan_attention(spans, BLOCK_SIZE), store, case.query(scope.device))


def mixed_spans(case: Case, num_groups: int, num_alone: int) -> list[SequenceSpan]:
    """Groups like `case`, each with a prefix of its own, and sequences as long that share with nobody."""
    num_blocks = len(case.spans()[0].block_table)
    num_prefix = case.prefix // BLOCK_SIZE
    ids = list(range(num_blocks * (num_groups * (1 + case.num_sequences) + num_alone)))
    random.Random(7).shuffle(ids)
    take = iter(ids)
    start = case.prefix + case.tail - 4
    spans = []
    for _ in range(num_groups):
        prefix = [next(take) for _ in range(num_prefix)]
        for _ in range(case.num_sequences):
            tail = [next(take) for _ in range(num_blocks - num_prefix)]
            spans.append(SequenceSpan([*prefix, *tail], start, 1))
    alone = [SequenceSpan([next(take) for _ in range(num_blocks)], start, 1) for _ in range(num_alone)]
    return spans + alone


def ratio_row(scope: Scope, name: str, runs: list[Callable[[], None]], bar: float | None = None) -> Row:
    """How many times longer the first run takes than the second: the median of pairs."""
    watches = [stopwatch(run, scope.device) for run in runs]
    pairs = [(watches[0](), watches[1]()) for _ in range(NUM_ROUNDS)]
    found = [a / b for a, b in pairs]
    ratio = statistics.median(found)
    return Row(
        name=name,
        value=ratio,
        unit="times",
        spread=f"{min(found):.2f} to {max(found):.2f}",
        bar=None if bar is None else f">= {bar}",
        holds=None if bar is None or scope.size == "dry" else ratio >= bar,
        note=f"{statistics.median(a for a, _ in pairs) * 1e6:.0f} and "
        f"{statistics.median(b for _, b in pairs) * 1e6:.0f} us",
    )
