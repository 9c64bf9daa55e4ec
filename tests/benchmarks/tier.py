"""What a tier behind the pool is worth: the first token of a prompt that comes back, and a pool too small.

Two workers run at a time, one with the tier and one without, and are asked in turn.

Usage: tier.py [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from report import Row, print_rows
from rich.progress import track

from prefixcache_client import Client, Generation
from prefixcache_client.worker_process import WorkerProcess

NUM_PREFIXES = 20
PREFIX_TOKENS = 512
NUM_OUTPUT_TOKENS = 16
POOL_BLOCKS = 132
"""Room for one prompt of 2,080 tokens, and hardly any more."""


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(100, 40_000) for _ in range(count)]


def answer(client: Client, prompt: list[int], max_tokens: int) -> Generation:
    return client.generate(prompt, max_tokens=max_tokens, temperature=0, ignore_eos=True)


@contextmanager
def worker(kv_blocks: int, *arguments: str) -> Iterator[Client]:
    with (
        WorkerProcess("--kv-blocks", str(kv_blocks), "--kv-headroom", "0", *arguments) as process,
        Client(process.wait_ready(timeout_seconds=300)) as client,
    ):
        yield client


def first_token_row(client: Client, rng: random.Random, rounds: int, tier: str, bar: float) -> Row:
    """A prompt of 2,048 tokens that another one has pushed out of the pool, over computing one."""
    ratios, cold_seconds, restored_seconds = [], [], []
    for _ in track(range(rounds), f"first token, {tier}", transient=True):
        prompt, other = tokens(rng, 2048), tokens(rng, 2048)
        cold = answer(client, prompt + tokens(rng, 32), 1)
        answer(client, other + tokens(rng, 32), 1)
        restored = answer(client, prompt + tokens(rng, 32), 1)
        assert (cold.usage.cached_tokens, restored.usage.cached_tokens) == (0, len(prompt))
        assert restored.usage.restored_tokens > 0.95 * len(prompt)
        cold_seconds.append(cold.timing.first_token_seconds)
        restored_seconds.append(restored.timing.first_token_seconds)
        ratios.append(restored_seconds[-1] / cold_seconds[-1])
    ratio = statistics.median(ratios)
    return Row(
        name=f"first token of 2,048 tokens from the {tier} tier over computing them",
        value=ratio,
        unit="ratio",
        spread=f"{min(ratios):.3f} to {max(ratios):.3f}",
        bar=f"<= {bar}",
        holds=ratio <= bar,
        note=f"{statistics.median(restored_seconds):.3f} s against {statistics.median(cold_seconds):.3f} s",
    )


def traffic_seconds(client: Client, prompts: list[list[int]]) -> float:
    start = time.monotonic()
    for prompt in prompts:
        answer(client, prompt, NUM_OUTPUT_TOKENS)
    return time.monotonic() - start


def traffic_rows(with_tier: Client, without: Client, rng: random.Random, rounds: int) -> list[Row]:
    """Prefixes in random order; the pool holds a tenth of them and the tier all."""
    prefixes = [tokens(rng, PREFIX_TOKENS) for _ in range(NUM_PREFIXES)]
    for client in (with_tier, without):
        traffic_seconds(client, [[*prefix, 7] for prefix in prefixes])
    speeds: dict[Client, list[float]] = {with_tier: [], without: []}
    for _ in track(range(rounds), "traffic", transient=True):
        order = rng.sample(prefixes, NUM_PREFIXES)
        prompts = [prefix + tokens(rng, 16) for prefix in order]
        for client in (with_tier, without):
            num_tokens = NUM_OUTPUT_TOKENS * len(prompts)
            speeds[client].append(num_tokens / traffic_seconds(client, prompts))
    ratios = [ours / theirs for ours, theirs in zip(speeds[with_tier], speeds[without], strict=True)]
    stats = with_tier.stats()
    return [
        *(
            Row(
                name=f"{NUM_PREFIXES} prefixes of {PREFIX_TOKENS} tokens in a pool for 2, {name}",
                value=statistics.median(speeds[client]),
                unit="tokens/s",
                spread=f"{min(speeds[client]):.1f} to {max(speeds[client]):.1f}",
            )
            for name, client in (("with a memory tier", with_tier), ("without", without))
        ),
        Row(
            name="the same, with the tier over without",
            value=statistics.median(ratios),
            unit="times the tokens/s",
            spread=f"{min(ratios):.2f} to {max(ratios):.2f}",
            note=f"{stats.tokens.restored} of {stats.tokens.prompt} prompt tokens came from the tier",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    rng = random.Random(7)
    rows = []
    with worker(POOL_BLOCKS, "--tier-memory", "400MiB") as client:
        rows.append(first_token_row(client, rng, args.rounds, "memory", bar=0.2))
    with tempfile.TemporaryDirectory() as folder:
        file = ("--tier-file", str(Path(folder) / "tier"), "--tier-file-size", "400MiB")
        with worker(POOL_BLOCKS, *file) as client:
            rows.append(first_token_row(client, rng, args.rounds, "file", bar=0.3))
    num_blocks = 2 * (PREFIX_TOKENS // 16 + 3)
    with worker(num_blocks, "--tier-memory", "1GiB") as with_tier, worker(num_blocks) as without:
        rows += traffic_rows(with_tier, without, rng, args.rounds)
    print_rows(rows, args.json)


if __name__ == "__main__":
    main()
