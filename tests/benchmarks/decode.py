"""Decode steps: what reading a shared run once is worth, and how near a step comes to the machine's limits.

The engine's blocks are shared in every case; only the plan differs. Each setting has one engine, and settings
that are compared run in turn. Usage: decode.py [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from decode_attention import format_rows, layout_rows, roofline_rows, shared_rows
from linears import NUM_LAYERS, SHAPES, multiply_all, packed_weights
from machine import peak_flops, read_bandwidth
from report import Row, print_rows
from rich.progress import track

from prefixcache import Namespace, PrefixCache
from prefixcache_worker.attention.backend import choose_backend
from prefixcache_worker.attention.kv_format import FP32, KvDtype, KvFormat
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import CHUNK_ROWS
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.engine_config import EngineConfig
from prefixcache_worker.engine.request import Request, SamplingParams, StopConditions
from prefixcache_worker.model.config import ModelConfig
from prefixcache_worker.model.loader import LoadedModel, load_model
from prefixcache_worker.model.model import Model

NUM_ROWS = 12_288
"""KV rows of an engine's pool."""
NUM_OUTPUT_TOKENS = 16
SUFFIX = 32
"""Tokens of each prompt behind what it shares."""
SHARED_SHAPES = ((0, 16), (1024, 16), (2048, 16), (4096, 32))
"""(tokens of the shared prefix, sequences)"""
BLOCK_SIZES = (1, 8, 16, 32, 64, 256)

Prompt = list[int]


def make_engine(
    model: Model,
    *,
    backend: str = "native",
    share: bool = True,
    block_size: int = 16,
    kv_format: KvFormat = FP32,
) -> Engine:
    num_blocks = NUM_ROWS // block_size
    store = KvStore(model.attention_shape, num_blocks=num_blocks, block_size=block_size, kv_format=kv_format)
    return Engine(
        model=model,
        cache=PrefixCache(num_blocks=num_blocks, block_size=block_size),
        kv_store=store,
        token_bytes=lambda token: b"",
        eos_token_ids=(),
        config=EngineConfig(share_reads=share, context_length=model.context_length),
        attention=choose_backend(backend, store),
    )


class Steps:
    """Steps of an engine in which all of its sequences decode."""

    def __init__(
        self, engine: Engine, prompts: Sequence[Prompt], num_output_tokens: int = NUM_OUTPUT_TOKENS
    ) -> None:
        """Runs them to the end. What prompts share is computed once, by the first of them."""
        self.seconds: list[float] = []
        self.rows_read: list[int] = []
        for number, prompt in enumerate([*prompts[:1], *prompts]):
            engine.add(
                number,
                Request(
                    request_id=str(number),
                    namespace=Namespace(model="model", tenant="tenant"),
                    prompt_token_ids=tuple(prompt),
                    sampling=SamplingParams(temperature=0),
                    stop_conditions=StopConditions(
                        max_tokens=num_output_tokens if number else 1, ignore_eos=True
                    ),
                ),
            )
            while number == 0 and engine.has_work:
                engine.step()
        while engine.has_work:
            before = engine.stats().tokens
            start = time.perf_counter()
            engine.step()
            seconds = time.perf_counter() - start
            after = engine.stats().tokens
            if after.generated - before.generated == len(prompts):
                self.seconds.append(seconds)
                self.rows_read.append(after.kv_rows_read - before.kv_rows_read)
        # The first of them ends the prompts.
        self.seconds, self.rows_read = self.seconds[1:], self.rows_read[1:]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class Prompts:
    """Random prompts, never the same twice."""

    def __init__(self) -> None:
        self._random = random.Random(7)

    def tokens(self, count: int) -> Prompt:
        return [self._random.randrange(100, 40_000) for _ in range(count)]

    def over(self, prefix: Prompt, count: int) -> list[Prompt]:
        """`count` prompts that begin with the prefix."""
        return [prefix + self.tokens(SUFFIX) for _ in range(count)]


def in_turn(
    name: str, rounds: int, sides: tuple[Callable[[], float], Callable[[], float]], **row: Any
) -> Row:
    """The first side's figure over the second's."""
    pairs = [(sides[0](), sides[1]()) for _ in track(range(rounds), name, transient=True)]
    ratios = [a / b for a, b in pairs]
    first, second = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
    at_least, at_most = row.pop("at_least", None), row.pop("at_most", None)
    median = statistics.median(ratios)
    bar = f">= {at_least:g}" if at_least is not None else f"<= {at_most:g}" if at_most is not None else None
    holds = None if bar is None else median >= at_least if at_least is not None else median <= at_most
    return Row(
        name=name,
        value=median,
        spread=f"{min(ratios):.2f} to {max(ratios):.2f}",
        bar=bar,
        holds=holds,
        note=f"{first:.1f} ms against {second:.1f} ms",
        **row,
    )


def end_to_end_rows(model: Model, prompts: Prompts, rounds: int) -> list[Row]:
    """Whole steps, with shared reads and without."""
    rows = []
    for backend in ("native", "torch"):
        unshared, shared = (make_engine(model, backend=backend, share=share) for share in (False, True))
        for prefix_length, count in SHARED_SHAPES:
            batches = [prompts.over(prompts.tokens(prefix_length), count) for _ in range(rounds)]
            sides = [iter([*batches]), iter([*batches])]
            rows.append(
                in_turn(
                    f"step, {backend}, shared reads, {prefix_length:,} x {count}",
                    rounds,
                    (
                        lambda engine=unshared, batch=sides[0]: Steps(engine, next(batch)).median,
                        lambda engine=shared, batch=sides[1]: Steps(engine, next(batch)).median,
                    ),
                    unit="times as fast",
                    at_least=0.98 if prefix_length == 0 else 1.0,
                )
            )
    return rows


def growth_rows(model: Model, prompts: Prompts, rounds: int) -> list[Row]:
    """A step over a long shared prefix against one over a short one."""
    rows = []
    for kv_format in (FP32, KvFormat(KvDtype.BF16)):
        engine = make_engine(model, kv_format=kv_format)

        def seconds(prefix_length: int, engine: Engine = engine) -> float:
            return Steps(engine, prompts.over(prompts.tokens(prefix_length), 16)).median

        rows.append(
            in_turn(
                f"step, 8,000 over 1,024 shared, batch 16, KV in {kv_format.name}",
                rounds,
                (lambda seconds=seconds: seconds(8000), lambda seconds=seconds: seconds(1024)),
                unit="ratio",
                at_most=2.0,
            )
        )
    return rows


def exactness_rows(config: ModelConfig, rounds: int) -> list[Row]:
    """What it costs that a row's products do not depend on the others: ours against oneDNN's, in float32."""
    ways = packed_weights([*SHAPES * NUM_LAYERS, (config.vocabulary_size, config.hidden_size)], ["fp32"])
    for weights in ways.values():
        multiply_all(1, weights)
    return [
        in_turn(
            f"all products of a step, exact over oneDNN's, {num_rows} rows",
            rounds,
            (
                lambda num_rows=num_rows: multiply_all(num_rows, ways["fp32"]),
                lambda num_rows=num_rows: multiply_all(num_rows, ways["torch"]),
            ),
            unit="ratio",
            at_most=1.05,
        )
        for num_rows in (1, 16, 64)
    ]


def unique_rows_row(model: Model, prompts: Prompts) -> Row:
    """Two groups of sequences over extensions of one base: every row of KV is read once."""
    engine, base = make_engine(model), prompts.tokens(1024)
    extended = [base + prompts.tokens(512) for _ in range(2)]
    for prompt in extended:
        Steps(engine, [prompt], 2)
    batch = [prompt for prefix in extended for prompt in prompts.over(prefix, 8)]
    steps = Steps(engine, batch)
    # Behind what is shared, each sequence has its suffix and what it has been given back: one token in the
    # first of these steps, n in the n-th. The token that a step generates has no row in it.
    unique = [1024 + 2 * 512 + 16 * (SUFFIX + n) for n in range(1, len(steps.rows_read) + 1)]
    return Row(
        name="KV rows read, two groups x 8 sequences x two levels",
        value=sum(steps.rows_read) / sum(unique),
        unit="of the unique rows",
        bar="= 1",
        holds=steps.rows_read == unique,
        note=f"{steps.rows_read[-1]:,} rows in the last step, counted by the engine; "
        f"prefixes are multiples of the chunk of {CHUNK_ROWS}",
    )


def plan_row(model: Model, prompts: Prompts) -> Row:
    """What planning takes of a step: the plan, and what the backend makes of it for all layers."""
    engine = make_engine(model)
    spent: list[float] = []

    def timed(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = work(*arguments)
            spent.append(time.perf_counter() - start)
            return result

        return run

    engine._planner.plan = timed(engine._planner.plan)  # type: ignore[method-assign]
    engine._attention = timed(engine._attention)
    steps = Steps(engine, prompts.over(prompts.tokens(4096), 32))
    per_step = [a + b for a, b in zip(spent[-2::-2], spent[::-2], strict=False)][: len(steps.seconds)]
    share = statistics.median(per_step) / steps.median
    return Row(
        name="planning, 4,096 x 32",
        value=share,
        unit="of a step",
        bar="<= 0.03",
        holds=share <= 0.03,
        note=f"{statistics.median(per_step) * 1e6:.0f} us of {steps.median * 1e3:.1f} ms",
    )


def num_weights(config: ModelConfig) -> int:
    """Weights that a step multiplies with."""
    num_heads = 2 * (config.num_query_heads + config.num_kv_heads)
    per_layer = config.hidden_size * (num_heads * config.head_dim + 3 * config.intermediate_size)
    return config.num_layers * per_layer + config.vocabulary_size * config.hidden_size


def single_stream_rows(loaded: LoadedModel, prompts: Prompts, bandwidth: float) -> list[Row]:
    """One sequence alone against what its bytes take from memory, at one position and along a long answer."""
    engine = make_engine(loaded.model)
    row_bytes = engine.kv_store.block_bytes / engine.kv_store.block_size
    first, count = 256, 2048
    seconds = Steps(engine, [prompts.tokens(first)], count).seconds
    middle = seconds[900:1100]
    num_bytes = 4 * num_weights(loaded.config) + row_bytes * (first + 1000)
    least = num_bytes / bandwidth
    median = statistics.median(middle)
    positions = torch.arange(len(seconds), dtype=torch.float64)
    # Medians of stretches, so that a step that was interrupted does not tilt the line.
    stretches = torch.tensor(seconds, dtype=torch.float64).split(64)[:-1]
    times = torch.stack([stretch.median() for stretch in stretches])
    centers = torch.stack([stretch.mean() for stretch in positions.split(64)[:-1]])
    slope = float(
        ((centers - centers.mean()) * (times - times.mean())).sum() / centers.var(correction=0) / len(centers)
    )
    explained = row_bytes / bandwidth
    return [
        Row(
            name="one sequence, step over what weights and KV take from memory",
            value=median / least,
            unit="ratio",
            bar="<= 1.3",
            holds=median / least <= 1.3,
            note=f"{median * 1e3:.1f} ms for {num_bytes / 1e6:.0f} MB at {first + 1000} rows",
        ),
        Row(
            name="one sequence, growth of a step with position over what KV takes from memory",
            value=slope / explained,
            unit="ratio",
            bar="<= 1.3",
            holds=slope / explained <= 1.3,
            note=f"{slope * 1e6:.2f} us a row against {explained * 1e6:.2f} us, answer of {count:,} tokens",
        ),
    ]


def block_size_rows(model: Model, prompts: Prompts, rounds: int) -> list[Row]:
    """S21: the same steps with other block sizes, each in turn with 16."""
    rows, base = [], make_engine(model)
    for block_size in BLOCK_SIZES:
        if block_size == 16:
            continue
        engine = make_engine(model, block_size=block_size)
        batches = [prompts.over(prompts.tokens(2048), 16) for _ in range(rounds)]
        sides = [iter([*batches]), iter([*batches])]
        rows.append(
            in_turn(
                f"step, blocks of {block_size} over blocks of 16, 2,048 x 16",
                rounds,
                (
                    lambda engine=engine, batch=sides[0]: Steps(engine, next(batch)).median,
                    lambda batch=sides[1]: Steps(base, next(batch)).median,
                ),
                unit="ratio",
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    loaded, prompts = load_model(None), Prompts()
    bandwidth, peak = read_bandwidth(), peak_flops()
    rows = [
        Row(name="read bandwidth of memory", value=bandwidth / 1e9, unit="GB/s"),
        Row(name="float32 product in the caches", value=peak / 1e9, unit="GFLOP/s"),
        *shared_rows(args.rounds),
        *roofline_rows(args.rounds, bandwidth, peak),
        *layout_rows(args.rounds),
        *format_rows(args.rounds),
        unique_rows_row(loaded.model, prompts),
        plan_row(loaded.model, prompts),
        *single_stream_rows(loaded, prompts, bandwidth),
        *growth_rows(loaded.model, prompts, args.rounds),
        *exactness_rows(loaded.config, args.rounds),
        *end_to_end_rows(loaded.model, prompts, args.rounds),
        *block_size_rows(loaded.model, prompts, args.rounds),
    ]
    print_rows(rows, args.json)


if __name__ == "__main__":
    main()
