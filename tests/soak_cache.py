"""Random operations on caches of all kinds for as long as you like, each compared with a naive oracle.

Usage: soak_cache.py [--operations 1000000] [--seed SEED]

A cache lives for 2,000 operations; then another one, with other settings, takes its place. The
life that fails prints the command which repeats it alone. Exit status: 0, or 1 when one failed.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import time
import traceback
from collections import deque
from collections.abc import Sequence

from support.cache_driver import OPERATION_WEIGHTS, CacheDriver
from support.cache_settings import CacheSettings, four_bit_hash
from support.chooser import Chooser
from xxhash import xxh3_64_intdigest

from prefixcache import POLICIES, ChunkHash

OPERATIONS_PER_LIFE = 2_000
CHECK_STRIDE = 10
"""What every row and count is compared with takes as long as several operations."""
NUM_REPORTS = 20
NUM_SHOWN = 12
"""Operations before a failure that are printed."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--seed", type=int, default=None, help="of the first life; the next ones count up")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(1_000_000_000) if options.seed is None else options.seed
    return soak(options.operations, seed)


def soak(num_operations: int, seed: int) -> int:
    """Live until so many operations are done or one fails. Returns the exit status."""
    print(f"{num_operations:,} operations, seed {seed}", flush=True)
    started, num_done, num_lives = time.perf_counter(), 0, 0
    report_at = report_stride = max(1, num_operations // NUM_REPORTS)
    while num_done < num_operations:
        num_planned = min(OPERATIONS_PER_LIFE, num_operations - num_done)
        if not _live(seed + num_lives, num_planned):
            return 1
        num_lives += 1
        num_done += num_planned
        if num_done >= report_at:
            report_at += report_stride
            seconds = time.perf_counter() - started
            print(f"{num_done:>12,} done in {seconds:,.0f} s, {num_done / seconds:,.0f} a second", flush=True)
    print(f"{num_lives:,} caches did what the oracle says, {num_done:,} times")
    return 0


def _live(seed: int, num_operations: int) -> bool:
    """One cache. Tells what happened when it does not do what the oracle says."""
    draw = random.Random(seed)
    settings = _draw_settings(draw)
    names, weights = list(OPERATION_WEIGHTS), list(OPERATION_WEIGHTS.values())
    choose = Chooser(draw.randint)
    latest: deque[str] = deque(maxlen=NUM_SHOWN)
    number = 0
    try:
        driver = CacheDriver(settings)
        for number, name in enumerate(draw.choices(names, weights, k=num_operations), start=1):
            latest.append(name)
            driver.perform(name, choose)
            if number % CHECK_STRIDE == 0:
                driver.compared.check()
        driver.compared.check()
    except Exception:
        traceback.print_exc()
        print(f"\n{settings}\nfailed at operation {number}, after {', '.join(latest)}")
        print(f"again: make soak ARGS='--seed {seed} --operations {num_operations}'")
        return False
    return True


def _draw_settings(draw: random.Random) -> CacheSettings:
    chunk_hashes: list[ChunkHash] = [xxh3_64_intdigest, four_bit_hash]
    return CacheSettings(
        num_blocks=draw.choice([10, 24, 60, 200]),
        block_size=draw.choice([1, 2, 4, 4, 8, 16]),
        policy=draw.choice(POLICIES),
        chunk_hash=draw.choice(chunk_hashes),
        public_after_tenants=draw.choice([None, None, 2]),
        max_pinned_share=draw.choice([0.2, 0.5, 1.0]),
    )


if __name__ == "__main__":
    sys.exit(main())
