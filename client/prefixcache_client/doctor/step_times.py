"""Steps behind few rows and behind many, timed in turns by the client's clock."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence

from prefixcache_client.answers import Delta, ModelInfo
from prefixcache_client.async_client import AsyncClient
from prefixcache_client.doctor.random_tokens import random_tokens
from prefixcache_client.doctor.slope import LEAST_PAIRS, StepPair, StepTimes

_FEW_ROWS, _MANY_ROWS = 16, 1024
_BURST_TOKENS = 9
_LEAST_STEPS = 4
"""That a burst must have timed one by one: a slow reader gets several tokens at once."""


async def time_steps(
    client: AsyncClient, info: ModelInfo, rng: random.Random, *, salt: str, num_pairs: int
) -> StepTimes | None:
    """Time short answers to a short and to a long prompt, in turns: what the machine does meanwhile touches
    both. Both prompts are in the cache, under `salt`, and as long as whole blocks and a token.

    None when the context is too short, or too few tokens came one by one.
    """
    few, many = (
        max(1, min(most, info.context_length - _BURST_TOKENS - 1) // info.block_size) * info.block_size + 1
        for most in (_FEW_ROWS, _MANY_ROWS)
    )
    if many <= few or many + _BURST_TOKENS > info.context_length:
        return None
    prompts = [random_tokens(rng, info, few), random_tokens(rng, info, many)]
    for prompt in prompts:
        await client.generate(prompt, max_tokens=1, temperature=0.0, ignore_eos=True, salt=salt)
    pairs = []
    for number in range(num_pairs):
        seconds: dict[int, float | None] = {}
        for which in (0, 1) if number % 2 else (1, 0):  # else what gets slower all the time touches one more
            seconds[which] = await _step_seconds(client, prompts[which], salt)
        behind_few, behind_many = seconds[0], seconds[1]
        if behind_few is not None and behind_many is not None:
            pairs.append(StepPair(behind_few, behind_many))
    if len(pairs) < LEAST_PAIRS:
        return None
    return StepTimes(pairs, many - few)


async def _step_seconds(client: AsyncClient, prompt: Sequence[int], salt: str) -> float | None:
    """The median over a burst; None when too few of its tokens came one by one."""
    seconds = []
    last_time: float | None = None
    async for event in client.stream(
        prompt, max_tokens=_BURST_TOKENS, temperature=0.0, ignore_eos=True, salt=salt
    ):
        if not isinstance(event, Delta):
            continue
        now = time.perf_counter()
        if last_time is not None and len(event.token_ids) == 1:
            seconds.append(now - last_time)
        last_time = now
    return statistics.median(seconds) if len(seconds) >= _LEAST_STEPS else None
