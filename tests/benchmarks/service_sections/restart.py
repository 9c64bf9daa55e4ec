"""A worker with a snapshot is stopped and started: how soon it is ready, and what its first hit takes."""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from report import Row

from prefixcache_client import Client
from prefixcache_client.worker_process import WorkerProcess

NUM_PREFIXES = 500
PREFIX_TOKENS = 32
"""Two blocks, so that 500 prefixes and their tails fit the usual pool."""
FIRST_HIT_SECONDS = 2.0
NUM_STREAMS = 4
STREAM_TOKENS = 48
NUM_SAMPLED = 20
"""Prefixes that are asked for again after the restart, besides the first."""

Prompt = list[int]


def restart_rows(num_pairs: int) -> list[Row]:
    """The figures of one worker on the default model, stopped well and started again."""
    rng = random.Random(11)
    prompts = [random_tokens(rng, PREFIX_TOKENS) for _ in range(NUM_PREFIXES)]
    with tempfile.TemporaryDirectory() as folder:
        with started("--snapshot", folder) as (client, cold_seconds):
            for prompt in prompts:
                cached_tokens(client, prompt)
            saved = client.snapshot()
            rows = [
                Row(
                    name=f"snapshot of {NUM_PREFIXES} prefixes",
                    value=saved.num_bytes / 2**20,
                    unit="MiB",
                    note=f"{saved.num_blocks} blocks, saved in {saved.seconds:.2f} s by an idle worker",
                ),
                tokens_beside_a_save(client, rng, num_pairs),
            ]
            again = rng.sample(prompts, NUM_SAMPLED)
            cached_before = [cached_tokens(client, prompt) for prompt in again]
        with started("--snapshot", folder) as (client, warm_seconds):
            began = time.perf_counter()
            found = cached_tokens(client, prompts[0])
            first_hit_seconds = time.perf_counter() - began
            cached_after = [cached_tokens(client, prompt) for prompt in again]
    assert found == PREFIX_TOKENS - 1
    assert cached_after == cached_before == [PREFIX_TOKENS - 1] * NUM_SAMPLED
    return [
        *rows,
        Row(
            name="from start to ready, with the snapshot",
            value=warm_seconds,
            unit="s",
            note=f"{cold_seconds:.2f} s without; the model is loaded in both",
        ),
        Row(
            name=f"first hit after a restart with {NUM_PREFIXES} warm prefixes",
            value=first_hit_seconds,
            unit="s after ready",
            bar=f"<= {FIRST_HIT_SECONDS:g}",
            holds=first_hit_seconds <= FIRST_HIT_SECONDS,
            note=f"{found} of {PREFIX_TOKENS} tokens cached, as before the stop",
        ),
    ]


@contextmanager
def started(*arguments: str) -> Iterator[tuple[Client, float]]:
    """A client of a new worker, and the seconds until it was ready."""
    began = time.perf_counter()
    with WorkerProcess(*arguments) as worker:
        address = worker.wait_ready(timeout_seconds=600)
        seconds = time.perf_counter() - began
        with Client(address) as client:
            yield client, seconds


def random_tokens(rng: random.Random, count: int) -> Prompt:
    return [rng.randrange(100, 40_000) for _ in range(count)]


def cached_tokens(client: Client, prompt: Prompt) -> int:
    return client.generate(prompt, max_tokens=1, temperature=0).usage.cached_tokens


def tokens_beside_a_save(client: Client, rng: random.Random, num_pairs: int) -> Row:
    """Decoding with one save after the other beside it, over decoding alone; in turn."""
    ratios, alone_rates, num_saves = [], [], 0
    for _ in range(num_pairs):
        alone = tokens_per_second(client, rng)
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            saving = pool.submit(save_until, client, stop)
            ratios.append(tokens_per_second(client, rng) / alone)
            stop.set()
            num_saves += saving.result()
        alone_rates.append(alone)
    return Row(
        name="decoding beside a save over decoding alone",
        value=statistics.median(ratios),
        unit="ratio",
        spread=f"{min(ratios):.2f} to {max(ratios):.2f}",
        note=f"{NUM_STREAMS} streams, {statistics.median(alone_rates):.0f} tokens/s alone; "
        f"{num_saves} saves in {num_pairs} pairs",
    )


def save_until(client: Client, stop: threading.Event) -> int:
    """Save again and again, and return how often."""
    num_saves = 0
    while not stop.is_set():
        client.snapshot()
        num_saves += 1
    return num_saves


def tokens_per_second(client: Client, rng: random.Random) -> float:
    """Of some streams at once, from the first call to the last token."""
    prompts = [random_tokens(rng, 8) for _ in range(NUM_STREAMS)]

    def stream(prompt: Prompt) -> int:
        answer = client.generate(prompt, max_tokens=STREAM_TOKENS, temperature=0, ignore_eos=True)
        return answer.usage.completion_tokens

    began = time.perf_counter()
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        num_tokens = sum(pool.map(stream, prompts))
    return num_tokens / (time.perf_counter() - began)
