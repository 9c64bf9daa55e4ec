"""Traffic made up for caches whose blocks hold one token: prompts as lists of ids, and what they hit."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterable, Iterator

from support.cache_runs import NAMESPACE

from prefixcache import PrefixCache

Prompt = list[int]
IDS = itertools.count(1_000)
SPARE = [0]
"""Follows every prompt and is never published: so a whole prompt can hit."""


def fresh(num_ids: int) -> Prompt:
    return list(itertools.islice(IDS, num_ids))


def shared_prefixes(num_prompts: int, seed: int = 0) -> Iterator[Prompt]:
    """Prompts behind one of 60 prefixes, of which a few are asked for often."""
    rng = random.Random(seed)
    prefixes = [fresh(8) for _ in range(60)]
    weights = [1 / (rank + 1) for rank in range(60)]
    for _ in range(num_prompts):
        yield rng.choices(prefixes, weights)[0] + fresh(4)


def conversations(num_prompts: int, seed: int = 0) -> Iterator[Prompt]:
    """Among three one-shot prompts each, one of a conversation that comes back about 100 prompts later."""
    rng = random.Random(seed)
    due: dict[int, Prompt] = {}
    for number in range(num_prompts):
        prompt = due.pop(number, None)
        if prompt is None:
            yield fresh(12)
            if rng.random() > 0.04:
                continue
            prompt = fresh(12)
        else:
            prompt = prompt + fresh(2)
            yield prompt
        if len(prompt) < 60:
            back = number + rng.randint(70, 130)
            due[next(later for later in itertools.count(back) if later not in due)] = prompt


def short_lived_conversations(num_prompts: int) -> Iterator[Prompt]:
    """Conversations continued six times at once and never again; among them, other prompts come twice."""
    due: deque[Prompt] = deque(fresh(12) for _ in range(15))
    prompt: Prompt = []
    for number in range(num_prompts // 2):
        prompt = fresh(12) if number % 7 == 0 else prompt + fresh(2)
        yield prompt
        if number % 2:
            yield due.popleft()
        else:
            due.append(fresh(12))
            yield due[-1]


def num_hits(cache: PrefixCache, prompts: Iterable[Prompt]) -> int:
    """Ids found cached, by prompts that run one after the other."""
    hits = 0
    for prompt in prompts:
        handle = cache.acquire(prompt + SPARE, NAMESPACE)
        hits += handle.num_cached_tokens
        cache.publish(handle, len(prompt))
        cache.release(handle)
    return hits


def cache_of(num_blocks: int, policy: str) -> PrefixCache:
    """One block more holds the spare token."""
    return PrefixCache(num_blocks=num_blocks + 1, block_size=1, policy=policy)
