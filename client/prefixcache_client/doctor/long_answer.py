"""One long answer, token by token by the client's clock."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass

from prefixcache_client.answers import Delta, ModelInfo
from prefixcache_client.async_client import AsyncClient
from prefixcache_client.doctor.random_tokens import random_tokens
from prefixcache_client.doctor.slope import LEAST_POINTS, Slope, slope_of

_PROMPT_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LongAnswer:
    """Its slope, and its beginning and end."""

    slope: Slope
    first_step_seconds: float
    """Median over the first quarter."""
    last_step_seconds: float
    num_rows: int
    """At its end."""


async def time_long_answer(
    client: AsyncClient, info: ModelInfo, rng: random.Random, *, num_tokens: int
) -> LongAnswer | None:
    """Ask for it past the cache. None when too few tokens came one by one to tell a slope."""
    prompt = random_tokens(rng, info, min(_PROMPT_TOKENS, info.context_length // 2))
    num_tokens = min(num_tokens, info.context_length - len(prompt) - 1)
    rows, seconds = [], []
    num_rows, last_time = len(prompt), 0.0
    async for event in client.stream(
        prompt, max_tokens=num_tokens, temperature=0.0, ignore_eos=True, use_cache=False
    ):
        if not isinstance(event, Delta):
            continue
        now = time.perf_counter()
        if num_rows > len(prompt) and len(event.token_ids) == 1:
            rows.append(num_rows)
            seconds.append(now - last_time)
        num_rows += len(event.token_ids)
        last_time = now
    if len(rows) < LEAST_POINTS:
        return None
    quarter = len(rows) // 4
    return LongAnswer(
        slope=slope_of(rows, seconds),
        first_step_seconds=statistics.median(seconds[:quarter]),
        last_step_seconds=statistics.median(seconds[-quarter:]),
        num_rows=num_rows,
    )
