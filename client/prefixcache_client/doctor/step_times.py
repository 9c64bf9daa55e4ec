"""Steps behind few rows and behind many, timed in turns."""

from __future__ import annotations

import random
from collections.abc import Sequence

from prefixcache_client.answers import ModelInfo
from prefixcache_client.async_client import AsyncClient
from prefixcache_client.doctor.random_tokens import random_tokens
from prefixcache_client.doctor.slope import StepPair, StepTimes

_FEW_ROWS, _MANY_ROWS = 16, 1024
_NUM_STEPS = 8


async def time_steps(
    client: AsyncClient, info: ModelInfo, rng: random.Random, *, salt: str, num_pairs: int
) -> StepTimes | None:
    """Time short answers to a short and to a long prompt, in turns: what the machine does meanwhile touches
    both. By the worker's clock, on which no reader's delay shows. None when the context is too short.

    Both prompts are in the cache, under `salt`, and have whole blocks and one token, which is computed.
    """
    few, many = (
        max(1, min(most, info.context_length - _NUM_STEPS - 2) // info.block_size) * info.block_size + 1
        for most in (_FEW_ROWS, _MANY_ROWS)
    )
    if many == few or many + _NUM_STEPS + 1 > info.context_length:
        return None
    prompts = [random_tokens(rng, info, few), random_tokens(rng, info, many)]
    for prompt in prompts:
        await _step_seconds(client, prompt, salt)
    pairs = []
    for number in range(num_pairs):
        seconds = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):  # else one had the worse of what gets slower all along
            seconds[which] = await _step_seconds(client, prompts[which], salt)
        pairs.append(StepPair(*seconds))
    return StepTimes(pairs, many - few)


async def _step_seconds(client: AsyncClient, prompt: Sequence[int], salt: str) -> float:
    """The mean of some decode steps."""
    answer = await client.generate(
        prompt, max_tokens=_NUM_STEPS + 1, temperature=0.0, ignore_eos=True, salt=salt
    )
    return (answer.timing.total_seconds - answer.timing.first_token_seconds) / _NUM_STEPS
