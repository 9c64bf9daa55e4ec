"""What reading a shared run once is worth: decode steps of the same engine with shared reads and without.

The blocks are shared in both cases; only the plan differs. Usage: shared_reads.py [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from report import Row, print_rows
from rich.progress import track

from prefixcache import Namespace, PrefixCache
from prefixcache_worker.attention.backend import choose_backend
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.engine.engine import Engine, EngineConfig
from prefixcache_worker.engine.request import Request, SamplingParams, StopConditions
from prefixcache_worker.model.loader import load_model
from prefixcache_worker.model.model import Model

NUM_BLOCKS = 1200
NUM_OUTPUT_TOKENS = 16
SHAPES = ((1024, 16), (2048, 16), (4096, 32), (0, 16))
"""(tokens of the shared prefix, sequences)"""


def make_engine(model: Model, backend: str, *, share_reads: bool) -> Engine:
    store = KvStore(model.attention_shape, num_blocks=NUM_BLOCKS, block_size=16)
    return Engine(
        model=model,
        cache=PrefixCache(num_blocks=NUM_BLOCKS, block_size=16),
        kv_store=store,
        token_bytes=lambda token: b"",
        eos_token_ids=(),
        config=EngineConfig(share_reads=share_reads),
        attention=choose_backend(backend, store),
    )


def decode_seconds(engine: Engine, prompts: list[list[int]]) -> float:
    """Median seconds of a step in which all sequences decode. The prefix is warmed first."""
    for i, prompt in enumerate([prompts[0], *prompts]):
        request = Request(
            request_id=str(i),
            namespace=Namespace(model="model", tenant="tenant"),
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(temperature=0),
            stop_conditions=StopConditions(max_tokens=NUM_OUTPUT_TOKENS if i else 1, ignore_eos=True),
        )
        engine.add(i, request)
        while i == 0 and engine.has_work:
            engine.step()
    seconds = []
    while engine.has_work:
        num_generated = engine.stats().tokens.generated
        start = time.perf_counter()
        engine.step()
        if engine.stats().tokens.generated - num_generated == len(prompts):
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    model, rng, rows = load_model(None).model, random.Random(7), []
    for backend in ("native", "torch"):
        engines = [make_engine(model, backend, share_reads=share) for share in (True, False)]
        for prefix_length, num_sequences in SHAPES:
            pairs = []
            for _ in track(
                range(args.rounds), f"{backend} {prefix_length} x {num_sequences}", transient=True
            ):
                prefix = [rng.randrange(100, 40_000) for _ in range(prefix_length)]
                prompts = [
                    prefix + [rng.randrange(100, 40_000) for _ in range(32)] for _ in range(num_sequences)
                ]
                pairs.append([decode_seconds(engine, prompts) for engine in engines])
            ratios = [unshared / shared for shared, unshared in pairs]
            shared, unshared = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
            bar = 0.98 if prefix_length == 0 else 1.0
            rows.append(
                Row(
                    name=f"decode step, {backend}, prefix {prefix_length:,}, {num_sequences} sequences",
                    value=statistics.median(ratios),
                    unit="times as fast with shared reads",
                    spread=f"{min(ratios):.2f} to {max(ratios):.2f}",
                    bar=f">= {bar:g}",
                    holds=statistics.median(ratios) >= bar,
                    note=f"{shared:.1f} ms against {unshared:.1f} ms",
                )
            )
    print_rows(rows, args.json)


if __name__ == "__main__":
    main()
