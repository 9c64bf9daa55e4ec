"""This service as a peer of other engines: reads rounds from standard input, answers each with one JSON line.

    python tests/benchmarks/peer_prefixcache.py [--bench-dir ../shared/bench] [-- WORKER ARGUMENTS]

The protocol and the prompts are those of `workload.py` in the bench folder. Every round goes through the real
gRPC path: all requests of a round at once, token ids in, greedy, past the end-of-text token.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path

from prefixcache_client import AsyncClient
from prefixcache_client.worker_process import WorkerProcess, sigterm_unwinds

BENCH_DIR = Path(__file__).resolve().parents[2].parent / "shared" / "bench"


async def answer(client: AsyncClient, prompt: list[int], output: int, public_tokens: int) -> float:
    """Run one request to its end; the seconds until its first token."""
    start = time.perf_counter()
    first_token_seconds = None
    num_tokens = 0
    async for event in client.stream(
        prompt, max_tokens=output, temperature=0.0, ignore_eos=True, public_tokens=public_tokens
    ):
        if first_token_seconds is None:
            first_token_seconds = time.perf_counter() - start
        num_tokens += len(getattr(event, "token_ids", ()))
    assert first_token_seconds is not None
    if num_tokens != output:
        raise RuntimeError(
            f"asked for {output} tokens, got {num_tokens}: the pool or the context is too small"
        )
    return first_token_seconds


def common_prefix_length(prompts: list[list[int]]) -> int:
    """How many tokens all prompts begin with. The least and the greatest prompt share the fewest."""
    least, greatest = min(prompts), max(prompts)
    pairs = enumerate(zip(least, greatest, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(least), len(greatest)))


class Peer:
    """Answers rounds through one client, on one event loop."""

    def __init__(self, address: str, runner: asyncio.Runner) -> None:
        self._address = address
        self._runner = runner
        self._client = runner.run(self._connect())

    async def _connect(self) -> AsyncClient:
        return AsyncClient(self._address)

    def run(self, prompts: list[list[int]], output: int) -> float:
        """Send all prompts at once; the median seconds to the first token."""
        public_tokens = common_prefix_length(prompts)

        async def run_all() -> list[float]:
            return await asyncio.gather(
                *(answer(self._client, prompt, output, public_tokens) for prompt in prompts)
            )

        return statistics.median(self._runner.run(run_all()))

    def warm(self, prefix: list[int]) -> None:
        """Leave the prefix in the cache."""
        self._runner.run(answer(self._client, [*prefix, 7], 1, len(prefix)))

    def close(self) -> None:
        """Close the client."""
        self._runner.run(self._client.close())


def main() -> None:
    """Serve rounds until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bench-dir", type=Path, default=BENCH_DIR, help="where workload.py lies")
    parser.add_argument("worker_arguments", nargs="*", metavar="-- WORKER ARGUMENTS")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.bench_dir))
    from workload import serve

    with sigterm_unwinds(), WorkerProcess(*arguments.worker_arguments) as worker, asyncio.Runner() as runner:
        peer = Peer(worker.wait_ready(timeout_seconds=300), runner)
        try:
            serve(peer.run, peer.warm)
        finally:
            peer.close()


if __name__ == "__main__":
    main()
