"""What the operations of the cache cost, without any model, also beside the caches of SGLang and vLLM.

Usage: cache_ops.py [--repeats 5] [--sglang PYTHON] [--vllm-python PYTHON] [--json FILE]

The caches have their default configuration. Calls are timed ten in a row, those that publish or extend one
by one, with what they need made ready before and the garbage collector frozen and off, as timeit does; the
peers do the same in processes of their own, see peer_cache_sglang.py and peer_cache_vllm.py. All are measured
in turn, `--repeats` times. The value of a row is the median of the calls of the best repeat, its spread the
medians of all repeats; a ratio is the median of the ratios of each repeat's medians, its spread their range.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import subprocess
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from operator import truediv
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from report import Row, print_rows

from prefixcache import CacheHandle, Namespace, PackedTokens, PrefixCache, pack_tokens
from prefixcache.block_keys import BlockKeys

HERE = Path(__file__).parent
NAMESPACE = Namespace("model", "tenant")
BLOCK_TOKENS = 16
CHAIN_TOKENS = 1024  # 64 blocks of 16
FIRST_OWN_TOKENS = itertools.count(100_000)  # every chain begins with a token of its own
NUM_SAMPLES, SECONDS = 1_000, 0.5
"""Calls of one operation in one repeat, and the time after which it ends with fewer."""
ONE_BY_ONE = ("publish_64", "extend")
"""Operations whose calls each need what was made ready last."""
OURS = "ours"


class Operation(NamedTuple):
    """What is timed, on every side that has it."""

    title: str
    bar_us: float | None = None
    theirs: Mapping[str, str] = MappingProxyType({})
    """Project -> what to know about the figures of its caches."""


MATCH_NOTES = {"SGLang": "with the slots of what was found"}
EVICT_NOTES = {"SGLang": "gathers all leaves in every call", "vLLM": "a list of blocks, without a tree"}
OPERATIONS = {
    "match_2k": Operation("match, 2,048-token hit, packed", 3, MATCH_NOTES),
    "match_32k": Operation("match, 32k-token hit, packed", 10, MATCH_NOTES),
    "hold_2k": Operation(
        "acquire + release, 2k hit and 2 new blocks",
        20,
        {"SGLang": "locks and unlocks, allocates nothing", "vLLM": "caches the new whole block too"},
    ),
    "publish_64": Operation("publish 64 new blocks", 40, {"SGLang": "the tree alone, without a pool"}),
    "evict_1k": Operation("evict one block, 1k leaves", 12, EVICT_NOTES),
    "evict_10k": Operation("evict one block, 10k leaves", 12, EVICT_NOTES),
    "evict_1m": Operation("evict one block, 1M leaves", 12, EVICT_NOTES),
    "partial_2": Operation("partial match, 2 siblings under the root"),
    "partial_10k": Operation("partial match, 10,000 siblings under the root"),
    "partial_deep_2": Operation("partial match, 2 siblings behind 1,024 tokens"),
    "partial_deep_10k": Operation("partial match, 10,000 siblings behind 1,024 tokens"),
    "keys_8k": Operation(
        "chained keys, 8,192 tokens", 300, {"SGLang": "SHA-256 in native code", "vLLM": "SHA-256 of pickles"}
    ),
    "extend": Operation("extend by a token"),
}
GROWTH = {
    "evict one block, 1M leaves / 1k": ("evict_1m", "evict_1k", 2),
    "partial match under the root, 10,000 siblings / 2": ("partial_10k", "partial_2", 3),
    "partial match behind 1,024 tokens, 10,000 siblings / 2": ("partial_deep_10k", "partial_deep_2", 3),
}
"""A large case, a small one, and how many times as long the large one may take."""

Prepare = Callable[[], Callable[[], object]]
"""Makes ready what one call needs, and returns the call to time."""

Samples = dict[str, dict[str, list[float]]]
"""Side -> operation -> nanoseconds of every call, in one repeat."""


def own_tokens(num_tokens: int) -> PackedTokens:
    return pack_tokens([next(FIRST_OWN_TOKENS), *range(num_tokens - 1)])


def fill(cache: PrefixCache, tokens: PackedTokens) -> None:
    """Leave the whole blocks of `tokens` in the cache."""
    handle = cache.acquire(tokens, NAMESPACE)
    cache.complete_copies(handle)
    cache.publish(handle, handle.num_tokens)
    cache.release(handle)


def hold(cache: PrefixCache, tokens: PackedTokens) -> None:
    cache.release(cache.acquire(tokens, NAMESPACE))


def on_new_handle(
    method: Callable[..., object], *args: object, new_tokens: Callable[[], PackedTokens]
) -> Prepare:
    """A method of the cache on a handle just acquired, in a pool that such handles keep full."""
    cache = PrefixCache(num_blocks=1024 * CHAIN_TOKENS // BLOCK_TOKENS, block_size=BLOCK_TOKENS)
    live: list[CacheHandle] = []

    def prepare() -> Callable[[], object]:
        while live:
            cache.release(live.pop())
        live.append(cache.acquire(new_tokens(), NAMESPACE))
        return partial(method, cache, live[0], *args)

    return prepare


def evicting(num_leaves: int) -> Prepare:
    """One block, with so many leaves to choose from."""
    cache = PrefixCache(num_blocks=num_leaves, block_size=BLOCK_TOKENS)
    for _ in range(num_leaves - 10):
        fill(cache, own_tokens(BLOCK_TOKENS))

    def prepare() -> Callable[[], object]:
        fill(cache, own_tokens(BLOCK_TOKENS))
        return partial(cache.evict, 1)

    return prepare


def matching_partly(num_siblings: int, prefix: Sequence[int]) -> Prepare:
    """The first 9 tokens of one sibling, with the first 8 of all others, behind `prefix`."""
    cache = PrefixCache(num_blocks=num_siblings + CHAIN_TOKENS // BLOCK_TOKENS, block_size=BLOCK_TOKENS)
    for sibling in range(num_siblings):
        fill(cache, pack_tokens([*prefix, *[1] * 8, sibling, *[2] * 7]))
    query = pack_tokens([*prefix, *[1] * 8, num_siblings // 2, *[3] * 7])
    assert cache.match(query, NAMESPACE).num_tokens == len(prefix) + 9
    return lambda: partial(cache.match, query, NAMESPACE)


def own_operations() -> dict[str, Prepare]:
    """Every operation of this cache."""
    cache = PrefixCache(num_blocks=4_096, block_size=BLOCK_TOKENS)
    prefix, long_prefix = range(2_048), range(40_000, 72_768)
    for tokens in (prefix, long_prefix):
        fill(cache, pack_tokens(tokens))
    hit, long_hit = pack_tokens([*prefix, 7]), pack_tokens([*long_prefix, 7])
    assert cache.match(hit, NAMESPACE).num_tokens == 2_048
    assert cache.match(long_hit, NAMESPACE).num_tokens == 32_768
    prompt = pack_tokens([*prefix, *[7] * 20])
    keys, text = BlockKeys(chunk_bytes=4 * BLOCK_TOKENS), pack_tokens(range(8_192))
    root_key = keys.root(NAMESPACE.domain)
    chain = range(CHAIN_TOKENS)
    return {
        "match_2k": lambda: partial(cache.match, hit, NAMESPACE),
        "match_32k": lambda: partial(cache.match, long_hit, NAMESPACE),
        "hold_2k": lambda: partial(hold, cache, prompt),
        "publish_64": on_new_handle(
            PrefixCache.publish, CHAIN_TOKENS, new_tokens=lambda: own_tokens(CHAIN_TOKENS)
        ),
        "evict_1k": evicting(1_000),
        "evict_10k": evicting(10_000),
        "evict_1m": evicting(1_000_000),
        "partial_2": matching_partly(2, []),
        "partial_10k": matching_partly(10_000, []),
        "partial_deep_2": matching_partly(2, chain),
        "partial_deep_10k": matching_partly(10_000, chain),
        "keys_8k": lambda: partial(keys.chain, root_key, text),
        "extend": on_new_handle(PrefixCache.extend, [7], new_tokens=lambda: own_tokens(1)),
    }


def sample(name: str, prepare: Prepare) -> list[float]:
    """Nanoseconds of a call, each the mean of some in a row, of as many as fit into the time."""
    num_in_a_row = 1 if name in ONE_BY_ONE else 10
    samples: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(samples) < NUM_SAMPLES and (not samples or time.perf_counter() < end):
        calls = [prepare() for _ in range(num_in_a_row)]
        start = time.perf_counter_ns()
        for call in calls:
            call()
        samples.append((time.perf_counter_ns() - start) / num_in_a_row)
    return samples


class Peer:
    """Another project's cache, in a process of its own that ends with the context."""

    def __init__(self, python: str, program: str) -> None:
        self._process = subprocess.Popen(
            [python, HERE / program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def sample(self) -> Samples:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(NUM_SAMPLES, SECONDS, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self._process.args[1]} ended without an answer; what it says is above")
        return json.loads(answer)


def measure(num_repeats: int, peers: Sequence[Peer]) -> list[Samples]:
    """Time every operation of every side in turn, so many times."""
    for peer in peers:
        peer.sample()  # dropped: what counts begins when all have filled their caches
    own = own_operations()
    gc.collect()
    gc.freeze()
    gc.disable()
    repeats = []
    for _ in range(num_repeats):
        samples: Samples = {OURS: {name: sample(name, prepare) for name, prepare in own.items()}}
        for peer in peers:
            samples |= peer.sample()
        repeats.append(samples)
    return repeats


def median_us(samples: Samples, side: str, name: str) -> float:
    return statistics.median(samples[side][name]) / 1e3


def timing_row(repeats: Sequence[Samples], side: str, name: str) -> Row:
    """The best repeat of one operation of one side. Only ours has a bar."""
    title, bar_us, notes = OPERATIONS[name]
    if side != OURS:
        title, bar_us = f"{title}: {side}", None
    medians = [median_us(samples, side, name) for samples in repeats]
    value = min(medians)
    calls = sorted(repeats[medians.index(value)][side][name])
    p99 = f"p99 {calls[len(calls) * 99 // 100] / 1e3:.4g} us"
    return Row(
        name=title,
        value=value,
        unit="us",
        spread=f"{value:.4g} to {max(medians):.4g}",
        bar=None if bar_us is None else f"<= {bar_us:g}",
        holds=None if bar_us is None else value <= bar_us,
        note="; ".join([p99, *(note for project, note in notes.items() if side.startswith(project))]),
    )


def ratio_row(title: str, ratios: Sequence[float], at_most: float | None = None) -> Row:
    """The median of a ratio over all repeats."""
    value = statistics.median(ratios)
    return Row(
        name=title,
        value=value,
        unit="x",
        spread=f"{min(ratios):.4g} to {max(ratios):.4g}",
        bar=None if at_most is None else f"<= {at_most:g}",
        holds=None if at_most is None else value <= at_most,
    )


def rows_of(repeats: Sequence[Samples]) -> list[Row]:
    """Operation by operation ours, each peer's, and theirs over ours; then how ours grow."""
    rows = []
    for name, operation in OPERATIONS.items():
        ours = [median_us(samples, OURS, name) for samples in repeats]
        rows.append(timing_row(repeats, OURS, name))
        for side in [side for side, timed in repeats[0].items() if side != OURS and name in timed]:
            theirs = [median_us(samples, side, name) for samples in repeats]
            rows.append(timing_row(repeats, side, name))
            rows.append(ratio_row(f"{operation.title}: {side} / ours", list(map(truediv, theirs, ours))))
    for title, (large, small, at_most) in GROWTH.items():
        ratios = [median_us(samples, OURS, large) / median_us(samples, OURS, small) for samples in repeats]
        rows.append(ratio_row(title, ratios, at_most))
    return rows


def memory_row(title: str, *, num_chains: int, num_pools: int = 1, at_most: float | None = None) -> Row:
    """Everything the cache holds, for each cached block, when its pool has been filled so many times."""
    tracemalloc.start()
    cache = PrefixCache(num_blocks=num_chains * CHAIN_TOKENS // BLOCK_TOKENS, block_size=BLOCK_TOKENS)
    for _ in range(num_pools * num_chains):
        fill(cache, own_tokens(CHAIN_TOKENS))
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    value = num_bytes / cache.stats().num_idle
    return Row(
        name=title,
        value=value,
        unit="bytes",
        bar=None if at_most is None else f"<= {at_most:g}",
        holds=None if at_most is None else value <= at_most,
        note="64 bytes of packed tokens for each block of 16 included",
    )


def memory_rows() -> list[Row]:
    title = "bookkeeping memory per cached block, chains of 64"
    return [
        memory_row(title, num_chains=200, at_most=150),
        memory_row(f"{title}, 70 pools evicted before", num_chains=50, num_pools=71),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sglang", metavar="PYTHON", help="an interpreter that has sglang")
    parser.add_argument("--vllm-python", metavar="PYTHON", help="an interpreter that has vllm")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    args = parser.parse_args()
    programs = {"peer_cache_sglang.py": args.sglang, "peer_cache_vllm.py": args.vllm_python}
    memory = memory_rows()
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(python, program)) for program, python in programs.items() if python]
        repeats = measure(args.repeats, peers)
    print_rows([*rows_of(repeats), *memory], args.json)


if __name__ == "__main__":
    main()
