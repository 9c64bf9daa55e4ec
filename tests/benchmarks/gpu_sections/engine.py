"""The whole engine: the same greedy tokens as on the CPU, then decode steps of a 135M model."""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from report import Row

from gpu_sections.cases import BLOCK_SIZE, FORMATS, Scope
from prefixcache import Namespace, PrefixCache
from prefixcache_worker.attention.backend import choose_backend
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.triton.decode_graph import GraphedModel, GraphLimits
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.engine_config import EngineConfig
from prefixcache_worker.engine.request import Delta, Request, SamplingParams, StopConditions
from prefixcache_worker.model.model import Model

sys.path.insert(0, str(Path(__file__).parents[2]))
from support.tiny_model import tiny_decoder


class Answers(NamedTuple):
    """What a run of the engine gave."""

    tokens: list[list[int]]
    step_seconds: float
    """The median of steps in which every sequence decodes."""


def engine(scope: Scope) -> Iterator[Row]:
    """Equality first; then steps, recorded and not, shared and not."""
    num_base, num_tokens = scope.choose((20, 2), (300, 12), (300, 12))
    prompts = [[3 + (i * 7 + j) % 900 for j in range(num_base)] + [5 + i] * (3 + i) for i in range(4)]
    prompts += [[*prompts[0][: num_base - 10], 9, 8, 7]]
    expected = generate(tiny_decoder(head_dim=64), "cpu", prompts, num_tokens, attention="torch").tokens
    for use_graphs in (False, True):
        model = tiny_decoder(head_dim=64, device=str(scope.device))
        found = generate(
            model, str(scope.device), prompts, num_tokens, attention="triton", use_graphs=use_graphs
        ).tokens
        yield Row(
            name=f"greedy tokens as on the CPU, {'recorded' if use_graphs else 'eager'}",
            value=sum(a == b for a, b in zip(expected, found, strict=True)),
            unit=f"of {len(prompts)} answers",
            bar=f">= {len(prompts)}",
            holds=found == expected,
        )
    if scope.size != "dry":
        yield from steps(scope)


def steps(scope: Scope) -> Iterator[Row]:
    """A model of SmolLM2-135M's shape with random weights."""
    model = tiny_decoder(
        num_layers=30,
        vocabulary_size=49152,
        num_query_heads=9,
        num_kv_heads=3,
        head_dim=64,
        context_length=8192,
        device=str(scope.device),
    )
    rng = random.Random(7)
    for length, count in scope.choose((), ((2048, 32),), ((2048, 32), (4096, 64))):
        prefix = [rng.randrange(100, 40_000) for _ in range(length)]
        prompts = [prefix + [rng.randrange(100, 40_000) for _ in range(32)] for _ in range(count)]
        seconds = {}
        for share in (True, False):
            for use_graphs in (True, False):
                seconds[share, use_graphs] = generate(
                    model, str(scope.device), prompts, 24, share_reads=share, kv="bf16", use_graphs=use_graphs
                ).step_seconds
                yield Row(
                    name=f"decode step, 135M, prefix {length:,} x {count}, "
                    f"{'shared' if share else 'unshared'}, {'recorded' if use_graphs else 'eager'}",
                    value=seconds[share, use_graphs] * 1e3,
                    unit="ms",
                    note=f"{count / seconds[share, use_graphs]:.0f} tokens/s",
                )
        ratio = seconds[True, False] / seconds[True, True]
        yield Row(
            name=f"eager over recorded step, prefix {length:,} x {count}",
            value=ratio,
            unit="times",
            bar=">= 5" if count == 32 else None,
            holds=ratio >= 5 if count == 32 else None,
        )


def generate(
    model: Model,
    device: str,
    prompts: list[list[int]],
    num_tokens: int,
    *,
    attention: str = "auto",
    share_reads: bool = True,
    use_graphs: bool = False,
    kv: str = "fp32",
) -> Answers:
    """Greedy answers of all prompts together, the first warmed."""
    num_blocks = (len(prompts[0]) + len(prompts) * 128) // BLOCK_SIZE + 64
    store = KvStore(
        model.attention_shape,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        kv_format=FORMATS[kv],
        device=device,
    )
    if use_graphs:
        longest = max(map(len, prompts)) + num_tokens
        limits = GraphLimits(max_running=len(prompts), context_length=longest)
        model = GraphedModel(model, store, limits)
    engine = Engine(
        model=model,
        cache=PrefixCache(num_blocks=num_blocks, block_size=BLOCK_SIZE),
        kv_store=store,
        token_bytes=lambda token: b"",
        eos_token_ids=(),
        config=EngineConfig(share_reads=share_reads, max_running=256),
        attention=choose_backend(attention, store),
    )
    answers: dict[object, list[int]] = {}
    seconds = []
    for i, prompt in enumerate([prompts[0], *prompts]):
        engine.add(
            i,
            Request(
                request_id=str(i),
                namespace=Namespace(model="model", tenant="tenant"),
                prompt_token_ids=tuple(prompt),
                sampling=SamplingParams(temperature=0),
                stop_conditions=StopConditions(max_tokens=num_tokens if i else 1, ignore_eos=True),
            ),
        )
        while engine.has_work and i in (0, len(prompts)):
            before, start = engine.stats().tokens.generated, time.perf_counter()
            outputs = engine.step()
            if engine.stats().tokens.generated - before == len(prompts):
                seconds.append(time.perf_counter() - start)
            for key, event in outputs:
                if isinstance(event, Delta):
                    answers.setdefault(key, []).extend(event.token_ids)
    tokens = [answers[i] for i in range(1, len(prompts) + 1)]
    return Answers(tokens, statistics.median(seconds[3:] or [math.nan]))
