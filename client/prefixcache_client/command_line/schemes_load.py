"""The load of `prefixcache schemes`: a burst of requests that begin the same, on a cold cache."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prefixcache_client.answers import Generation, ModelInfo
from prefixcache_client.async_client import AsyncClient

_LEAST_TOKEN_ID = 100
"""Special tokens lie below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """What a worker did when it was sent some requests at once."""

    num_running: int
    """The most sequences that ran together."""
    num_preemptions: int
    kv_bytes: int
    """Held by the requests at the peak."""
    wasted_share: float
    """Of what they held then, the part without a token in it."""
    tokens_per_second: float
    """Output tokens by the client's clock, which runs while the prompts are computed too."""
    first_token_seconds: float
    """Median over the requests, by the worker's clock, from their arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemesLoad:
    """The shape of every request."""

    prefix_tokens: int = 1024
    """The same for all requests of a burst, and new for each burst."""
    suffix_tokens: int = 64
    """Of each request's own."""
    output_tokens: int = 64

    @property
    def num_tokens(self) -> int:
        """Tokens of one request, prompt and answer."""
        return self.prefix_tokens + self.suffix_tokens + self.output_tokens

    def generating_more(self) -> SchemesLoad:
        """As many tokens, most of them generated: so the first answers last until the last prompt is in."""
        num_own = self.suffix_tokens + self.output_tokens
        return replace(self, suffix_tokens=1, output_tokens=num_own - 1)

    def num_blocks(self, block_size: int) -> int:
        """The length of its block table in the end. The last token's row is never written."""
        return -(-(self.num_tokens - 1) // block_size)

    def num_fit(self, scheme: str, info: ModelInfo) -> int:
        """How many requests have room in a worker's pool at the same time, all at their full length."""
        num_own = self.num_blocks(info.block_size)
        num_common = 0
        if scheme == "contiguous":
            num_own = -(-info.context_length // info.block_size)
        elif scheme == "shared":
            num_common = self.prefix_tokens // info.block_size
        return (info.num_blocks - num_common) // (num_own - num_common)

    def prompts(self, num_requests: int, vocabulary_size: int, seed: int) -> list[list[int]]:
        """Random tokens; the same seed makes the same ones."""
        rng = random.Random(seed)
        ids = range(min(_LEAST_TOKEN_ID, vocabulary_size - 1), vocabulary_size)
        prefix = rng.choices(ids, k=self.prefix_tokens)
        return [prefix + rng.choices(ids, k=self.suffix_tokens) for _ in range(num_requests)]

    async def send(self, client: AsyncClient, prompts: Sequence[Sequence[int]]) -> Burst:
        """Send one request for each prompt, all at once, to a worker that has nothing else to do.

        Raises PrefixCacheClientError, and cancels the others, when one fails.
        """
        before = await client.stats(reset_peaks=True)
        start = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._answer(client, prompt)) for prompt in prompts]
        except ExceptionGroup as failures:  # the first failure cancelled the rest and tells enough
            raise failures.exceptions[0] from None
        seconds = time.perf_counter() - start
        answers = [task.result() for task in tasks]
        after = await client.stats()
        blocks = after.blocks
        return Burst(
            num_running=after.requests.peak_running,
            num_preemptions=after.requests.preemptions - before.requests.preemptions,
            kv_bytes=blocks.peak_live * blocks.block_bytes,
            wasted_share=1 - blocks.peak_used_slots / (blocks.peak_live * blocks.block_size),
            tokens_per_second=sum(answer.usage.completion_tokens for answer in answers) / seconds,
            first_token_seconds=statistics.median(answer.timing.first_token_seconds for answer in answers),
        )

    async def _answer(self, client: AsyncClient, prompt: Sequence[int]) -> Generation:
        return await client.generate(prompt, max_tokens=self.output_tokens, temperature=0.0, ignore_eos=True)
