"""A cache hit changes nothing: the same prompts cold and warm, alone and in a batch, in small and large
prefill chunks, on the real model and on the scripted and echo models.

Usage: hit_equality.py [--prompts 40] [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import random

import torch
from report import Row, print_rows
from rich.progress import track

from prefixcache import Namespace, PrefixCache
from prefixcache_worker.attention.backend import choose_backend
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.engine.batch import Batch
from prefixcache_worker.engine.engine import Engine, Output
from prefixcache_worker.engine.engine_config import EngineConfig
from prefixcache_worker.engine.request import Request, SamplingParams, StopConditions
from prefixcache_worker.model.echo_model import EchoModel
from prefixcache_worker.model.loader import load_model
from prefixcache_worker.model.model import Model
from prefixcache_worker.model.scripted_model import ScriptedModel

TOLERANCE = 1e-3
NUM_OUTPUT_TOKENS = 6
BATCH = 8


class RecordingEngine(Engine):
    """Keeps the logits behind every token, by request."""

    logits: dict[str, list[torch.Tensor]]

    def _apply(self, batch: Batch, logits: torch.Tensor) -> list[Output]:
        sampled = [
            span.sequence for span in batch.spans if span.num_tokens == span.sequence.num_uncomputed_tokens
        ]
        for sequence, row in zip(sampled, logits, strict=True):
            self.logits.setdefault(sequence.key, []).append(row.clone())
        return super()._apply(batch, logits)


def make_engine(model: Model, chunk: int) -> RecordingEngine:
    num_blocks = 2048
    store = KvStore(model.attention_shape, num_blocks=num_blocks, block_size=16)
    engine = RecordingEngine(
        model=model,
        cache=PrefixCache(num_blocks=num_blocks, block_size=16),
        kv_store=store,
        attention=choose_backend("auto", store),
        token_bytes=lambda token: b"",
        eos_token_ids=(),
        config=EngineConfig(max_batch_tokens=chunk, context_length=model.context_length),
    )
    engine.logits = {}
    return engine


def run(engine: RecordingEngine, prompts: list[list[int]]) -> tuple[list[list[torch.Tensor]], int]:
    """(logits behind each output token, by prompt; cached tokens in all), the prompts together."""
    engine.logits.clear()
    for i, prompt in enumerate(prompts):
        engine.add(
            str(i),
            Request(
                request_id=str(i),
                namespace=Namespace(model="model", tenant="tenant"),
                prompt_token_ids=tuple(prompt),
                sampling=SamplingParams(temperature=0),
                stop_conditions=StopConditions(max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True),
            ),
        )
    before = engine.stats().tokens.cached
    while engine.has_work:
        engine.step()
    engine.check()
    return [engine.logits[str(i)] for i in range(len(prompts))], engine.stats().tokens.cached - before


def make_prompts(count: int, vocabulary_size: int) -> list[list[int]]:
    """Prompts of 20 to 300 random tokens; every other one begins like the one before it."""
    rng = random.Random(7)
    prompts: list[list[int]] = []
    for i in range(count):
        head = prompts[-1][: rng.randrange(10, len(prompts[-1]))] if i % 2 else []
        prompts.append(
            head + [rng.randrange(100, vocabulary_size - 2) for _ in range(rng.randrange(20, 200))]
        )
    return prompts


def variants(model: Model, prompts: list[list[int]]):
    """(name, logits by prompt, cached tokens, how many these must be) for each way to run the prompts.

    Warm, every prompt is cached but for its last token, which is computed for its logits. Cold, the
    prompts of one batch may find each other: then nothing is said about how many must be cached.
    """
    num_warm = sum(len(prompt) - 1 for prompt in prompts)
    for chunk, batch, warm in itertools.product((16, 256), (1, BATCH), (False, True)):
        logits, num_cached = [], 0
        for first in track(
            range(0, len(prompts), batch), f"chunk {chunk}, batch {batch}, warm {warm}", transient=True
        ):
            part = prompts[first : first + batch]
            engine = make_engine(model, chunk)
            if warm:
                run(engine, part)
            answers, cached = run(engine, part)
            logits += answers
            num_cached += cached
        num_expected = num_warm if warm else 0 if batch == 1 else None
        yield f"chunk {chunk}, batch {batch}, {'warm' if warm else 'cold'}", logits, num_cached, num_expected


def compare(base: list[torch.Tensor], other: list[torch.Tensor]) -> tuple[float, int]:
    """(largest difference of logits, unexcused token differences) of one answer.

    Where the two likeliest tokens are closer than the tolerance, either may follow, and what comes
    behind is not compared.
    """
    worst = 0.0
    for a, b in zip(base, other, strict=True):
        worst = max(worst, float((a - b).abs().max()))
        if a.argmax() != b.argmax():
            top = a.topk(2).values
            return worst, int(top[0] - top[1] > TOLERANCE)
    return worst, 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--json")
    args = parser.parse_args()
    models = {
        "SmolLM2-135M": load_model(None).model,
        "echo": EchoModel(vocabulary_size=1000, eos_token_id=2),
        "scripted": ScriptedModel(script=[5, 7, 11, 13, 17, 19], vocabulary_size=1000, eos_token_id=2),
    }
    rows = []
    for name, model in models.items():
        prompts = make_prompts(
            args.prompts, min(model.vocabulary_size, 1000 if name != "SmolLM2-135M" else 40_000)
        )
        base: list[list[torch.Tensor]] | None = None
        for variant, logits, num_cached, num_expected in variants(model, prompts):
            base = logits if base is None else base
            results = [compare(a, b) for a, b in zip(base, logits, strict=True)]
            worst, differing = max(r[0] for r in results), sum(r[1] for r in results)
            ids_equal = all(
                [int(x.argmax()) for x in a] == [int(x.argmax()) for x in b]
                for a, b in zip(base, logits, strict=True)
            )
            hits = num_expected is None or num_cached == num_expected
            exact = name == "SmolLM2-135M" or ids_equal
            ids = "ids equal" if ids_equal else "ids differ within the tolerance"
            rows.append(
                Row(
                    name=f"hit equality, {name}, {variant}",
                    value=worst,
                    unit="largest logit difference",
                    bar=f"<= {TOLERANCE:g}, ids equal"
                    + ("" if num_expected is None else f", {num_expected} tokens cached"),
                    holds=worst <= TOLERANCE and differing == 0 and hits and exact,
                    note=f"{len(prompts)} prompts, {num_cached} tokens cached, {ids}",
                )
            )
    print_rows(rows, args.json)


if __name__ == "__main__":
    main()
