"""The main job through the real worker: one prefix held once for 16 requests, and the first token on a hit.

Usage: main_job.py [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import random
import statistics
from concurrent.futures import ThreadPoolExecutor

from report import Row, print_rows
from rich.progress import track

from prefixcache_client import Client, Generation
from prefixcache_client.worker_process import WorkerProcess

BLOCK_SIZE = 16


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(100, 40_000) for _ in range(count)]


def answer(client: Client, prompt: list[int], max_tokens: int) -> Generation:
    return client.generate(prompt, max_tokens=max_tokens, temperature=0, ignore_eos=True)


def blocks_of_one_prefix(client: Client, rng: random.Random) -> Row:
    """16 requests over one 1,024-token prefix, all running at once."""
    prefix, num_requests, num_suffix, num_output = tokens(rng, 1024), 16, 32, 32
    answer(client, [*prefix, 7], 1)
    client.stats(reset_peaks=True)
    with ThreadPoolExecutor(num_requests) as pool:
        jobs = [
            pool.submit(answer, client, prefix + tokens(rng, num_suffix), num_output)
            for _ in range(num_requests)
        ]
        usages = [job.result().usage for job in jobs]
    blocks = client.stats().blocks
    num_own = -(-(num_suffix + num_output) // BLOCK_SIZE)
    num_shared = len(prefix) // BLOCK_SIZE
    bar = num_shared + num_requests * num_own
    # One after the other would keep under the bar too: at the peak each had all but its last block.
    ran_together = blocks.peak_live_unshared >= num_requests * (num_shared + num_own - 1)
    return Row(
        name="blocks in use, 16 requests over one 1,024-token prefix",
        value=blocks.peak_live,
        unit="blocks",
        bar=f"<= {num_shared} + {num_requests} x {num_own} = {bar}, all at once",
        holds=blocks.peak_live <= bar
        and ran_together
        and all(usage.cached_tokens == len(prefix) for usage in usages),
        note=f"{blocks.peak_live_unshared} without sharing; read from the server",
    )


def first_token_on_a_hit(client: Client, rng: random.Random, rounds: int) -> Row:
    """First token of a 2,048-token prompt, cold and with all but 32 of its tokens cached, in turn."""
    ratios, cold_seconds, hit_seconds = [], [], []
    for _ in track(range(rounds), "first token", transient=True):
        prompt = tokens(rng, 2048)
        cold = answer(client, prompt + tokens(rng, 32), 1)
        hit = answer(client, prompt + tokens(rng, 32), 1)
        assert (cold.usage.cached_tokens, hit.usage.cached_tokens) == (0, len(prompt))
        cold_seconds.append(cold.timing.first_token_seconds)
        hit_seconds.append(hit.timing.first_token_seconds)
        ratios.append(hit_seconds[-1] / cold_seconds[-1])
    return Row(
        name="first token on a 2,048-token hit over cold",
        value=statistics.median(ratios),
        unit="ratio",
        spread=f"{min(ratios):.3f} to {max(ratios):.3f}",
        bar="<= 0.1",
        holds=statistics.median(ratios) <= 0.1,
        note=f"{statistics.median(hit_seconds):.3f} s against {statistics.median(cold_seconds):.3f} s",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    rng = random.Random(7)
    with WorkerProcess() as worker, Client(worker.wait_ready(timeout_seconds=300)) as client:
        rows = [blocks_of_one_prefix(client, rng), first_token_on_a_hit(client, rng, args.rounds)]
    print_rows(rows, args.json)


if __name__ == "__main__":
    main()
