"""What the operations of the cache cost, without any model.

Usage: cache_ops.py [--rounds 200] [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import tracemalloc
from collections.abc import Callable

from report import Row, print_rows

from prefixcache import Namespace, PackedTokens, PrefixCache, pack_tokens

NAMESPACE = Namespace("model", "tenant")
CHAIN_TOKENS = 1024  # 64 blocks of 16
FIRST_OWN_TOKENS = itertools.count(100_000)  # every chain begins with a token of its own


def new_chain() -> PackedTokens:
    return pack_tokens([next(FIRST_OWN_TOKENS), *range(CHAIN_TOKENS - 1)])


def fill(cache: PrefixCache, num_chains: int) -> None:
    for _ in range(num_chains):
        handle = cache.acquire(new_chain(), NAMESPACE)
        cache.publish(handle, CHAIN_TOKENS)
        cache.release(handle)


def timed(
    name: str, action: Callable[[], object], rounds: int, *, bar_us: float | None, note: str = ""
) -> Row:
    """The median over rounds of ten calls each."""
    samples = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(10):
            action()
        samples.append((time.perf_counter() - start) / 10 * 1e6)
    median = statistics.median(samples)
    return Row(
        name=name,
        value=median,
        unit="us",
        spread=f"{min(samples):.2f} to {max(samples):.2f}",
        bar=None if bar_us is None else f"<= {bar_us:g}",
        holds=None if bar_us is None else median <= bar_us,
        note=note,
    )


def hit_rows(rounds: int) -> list[Row]:
    """Reading and taking a cached prefix."""
    cache = PrefixCache(num_blocks=40_000)
    prefix = list(range(32_768))
    long_namespace = Namespace("model", "long")
    for tokens, namespace in ((prefix[:2048], NAMESPACE), (prefix, long_namespace)):
        handle = cache.acquire(tokens, namespace)
        cache.publish(handle, len(tokens))
        cache.release(handle)
    hit, long_hit = pack_tokens(prefix[:2048]), pack_tokens(prefix)
    prompt = pack_tokens([*prefix[:2048], *[7] * 20])
    sequence = cache.acquire([1], NAMESPACE)
    return [
        timed("match, 2,048 tokens cached", lambda: cache.match(hit, NAMESPACE), rounds, bar_us=3),
        timed(
            "match, 32,768 tokens cached", lambda: cache.match(long_hit, long_namespace), rounds, bar_us=None
        ),
        timed(
            "acquire and release, 2 new blocks",
            lambda: cache.release(cache.acquire(prompt, NAMESPACE)),
            rounds,
            bar_us=20,
            note="128 idle blocks shared besides",
        ),
        timed("extend by a token", lambda: cache.extend(sequence, [7]), rounds, bar_us=None),
    ]


def publish_row(rounds: int) -> Row:
    cache = PrefixCache(num_blocks=(rounds * 10 + 1) * 64)
    handles = iter([cache.acquire(new_chain(), NAMESPACE) for _ in range(rounds * 10)])
    return timed("publish 64 blocks", lambda: cache.publish(next(handles), CHAIN_TOKENS), rounds, bar_us=40)


def evict_row(num_leaves: int, rounds: int) -> Row:
    """One block at a time, with so many leaves to choose from."""
    cache = PrefixCache(num_blocks=num_leaves, block_size=1)
    for _ in range(num_leaves):
        handle = cache.acquire([next(FIRST_OWN_TOKENS)], NAMESPACE)
        cache.publish(handle, 1)
        cache.release(handle)
    rounds = min(rounds, num_leaves // 20)
    return timed(f"evict a block, {num_leaves:,} leaves", lambda: cache.evict(1), rounds, bar_us=None)


def memory_row(num_chains: int = 200) -> Row:
    """Everything the cache holds, the pool included, for each cached block."""
    tracemalloc.start()
    cache = PrefixCache(num_blocks=num_chains * 64)
    fill(cache, num_chains)
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    value = num_bytes / cache.stats().num_idle
    note = "chains of 64 blocks of 16 tokens, the packed tokens included"
    return Row(
        name="bookkeeping", value=value, unit="bytes/block", bar="<= 150", holds=value <= 150, note=note
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    args = parser.parse_args()
    evictions = [evict_row(num_leaves, args.rounds) for num_leaves in (1_000, 10_000, 100_000)]
    print_rows([*hit_rows(args.rounds), publish_row(args.rounds), *evictions, memory_row()], args.json)


if __name__ == "__main__":
    main()
