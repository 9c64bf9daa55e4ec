"""Requests that are sent all at once to a worker that has nothing else to do."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from prefixcache_client.answers import Generation
from prefixcache_client.async_client import AsyncClient
from prefixcache_client.cache_answers import Stats

_LEAST_TOKEN_ID = 100  # special tokens lie below
_GREATEST_TOKEN_ID = 40_000  # and above, where the vocabulary is large


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """What came of one."""

    answers: tuple[Generation, ...]
    """One for each prompt, in their order."""
    seconds: float
    """From the first request to the last answer, by the client's clock; so with the time of the prompts."""
    before: Stats
    after: Stats
    """Its peaks are those of the burst."""

    @property
    def num_running(self) -> int:
        """The most sequences that ran together."""
        return self.after.requests.peak_running

    @property
    def num_preemptions(self) -> int:
        return self.after.requests.preemptions - self.before.requests.preemptions

    @property
    def kv_bytes(self) -> int:
        """Held by the requests at the peak."""
        return self.after.blocks.peak_live * self.after.blocks.block_bytes

    @property
    def wasted_share(self) -> float:
        """Of what they held then, the part without a token in it."""
        blocks = self.after.blocks
        return 1 - blocks.peak_used_slots / (blocks.peak_live * blocks.block_size)

    @property
    def tokens_per_second(self) -> float:
        """Output tokens."""
        return sum(answer.usage.completion_tokens for answer in self.answers) / self.seconds

    @property
    def first_token_seconds(self) -> float:
        """Median over the requests, by the worker's clock, from their arrival."""
        return statistics.median(answer.timing.first_token_seconds for answer in self.answers)


def random_prompts(
    seed: int | str, vocabulary_size: int, *, num_prompts: int, shared_tokens: int, own_tokens: int
) -> list[list[int]]:
    """Prompts that begin with the same random tokens; the same seed makes the same ones."""
    rng = random.Random(seed)
    stop = min(_GREATEST_TOKEN_ID, vocabulary_size)
    ids = range(min(_LEAST_TOKEN_ID, stop - 1), stop)
    shared = rng.choices(ids, k=shared_tokens)
    return [shared + rng.choices(ids, k=own_tokens) for _ in range(num_prompts)]


async def send_burst(client: AsyncClient, prompts: Sequence[Sequence[int]], *, output_tokens: int) -> Burst:
    """One request for each prompt, each with so many tokens to generate.

    Raises PrefixCacheClientError, and cancels the others, when one fails.
    """
    before = await client.stats(reset_peaks=True)
    start = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    client.generate(prompt, max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
                )
                for prompt in prompts
            ]
    except ExceptionGroup as failures:  # the first failure cancelled the rest and tells enough
        raise failures.exceptions[0] from None
    seconds = time.perf_counter() - start
    return Burst(
        answers=tuple(task.result() for task in tasks),
        seconds=seconds,
        before=before,
        after=await client.stats(),
    )
