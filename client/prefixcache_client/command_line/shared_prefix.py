"""The load of `prefixcache bench shared-prefix`: prompts with one common beginning."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from prefixcache_client.answers import Event, Generation, generation_from_events
from prefixcache_client.async_client import AsyncClient
from prefixcache_client.cache_answers import Stats
from prefixcache_client.command_line.figures import Figure, percentile, share_of_unshared
from prefixcache_client.command_line.output import share
from prefixcache_client.errors import PrefixCacheClientError

_LEAST_TOKEN_ID = 100  # special tokens lie below
_GREATEST_TOKEN_ID = 40_000


@dataclass(slots=True)
class Measurement:
    """What came back. Filled while the load runs."""

    generations: list[Generation] = field(default_factory=list)
    first_token_seconds: list[float] = field(default_factory=list)
    """From sending a request to its first token, by the client's clock; one per generation."""
    failures: Counter[str] = field(default_factory=Counter)
    """How many requests ended with which error."""
    total_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixLoad:
    """How much to send. Request i belongs to tenant i modulo `tenants`; the prefix is public."""

    prefix_tokens: int = 1024
    suffix_tokens: int = 32
    output_tokens: int = 32
    requests: int = 16
    concurrency: int = 16
    tenants: int = 4
    seed: int = 0

    def prefix(self, vocabulary_size: int) -> list[int]:
        """The common beginning. The same seed makes the same ids."""
        return self._token_ids("prefix", self.prefix_tokens, vocabulary_size)

    def _tenants(self) -> list[str | None]:
        """Their names; a tenant that is alone is whoever the worker takes the caller for."""
        return [None] if self.tenants == 1 else [f"bench-{i}" for i in range(self.tenants)]

    def prompts(self, vocabulary_size: int) -> list[list[int]]:
        """One prompt per request: the common beginning and a tail of its own."""
        prefix = self.prefix(vocabulary_size)
        return [
            prefix + self._token_ids(f"suffix-{i}", self.suffix_tokens, vocabulary_size)
            for i in range(self.requests)
        ]

    async def run(
        self,
        address: str,
        *,
        api_key: str | None = None,
        deadline: float | None,
        progress: Callable[[], None],
    ) -> list[Figure]:
        """Warm the prefix, send everything, at most `concurrency` at a time; the figures.

        Calls `progress` once per finished request. Raises PrefixCacheClientError when no request succeeds.
        """
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    AsyncClient(address, api_key=api_key, tenant=tenant, deadline=deadline)
                )
                for tenant in self._tenants()
            ]
            vocabulary_size = (await clients[0].model_info()).vocabulary_size
            prefix = self.prefix(vocabulary_size)
            await clients[0].generate(
                [*prefix, prefix[0]], max_tokens=1, temperature=0.0, public_tokens=self.prefix_tokens
            )
            before = await clients[0].stats(reset_peaks=True)
            measurement = await self._send(clients, self.prompts(vocabulary_size), progress)
            return self._figures(measurement, before, await clients[0].stats())

    async def _send(
        self, clients: Sequence[AsyncClient], prompts: Sequence[list[int]], progress: Callable[[], None]
    ) -> Measurement:
        measurement = Measurement()
        slots = asyncio.Semaphore(self.concurrency)
        last_error: PrefixCacheClientError | None = None

        async def send(client: AsyncClient, prompt: list[int]) -> None:
            nonlocal last_error
            async with slots:
                try:
                    first_token_seconds, generation = await self._answer(client, prompt)
                except PrefixCacheClientError as error:
                    measurement.failures[type(error).__name__] += 1
                    last_error = error
                else:
                    measurement.generations.append(generation)
                    measurement.first_token_seconds.append(first_token_seconds)
            progress()

        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for i, prompt in enumerate(prompts):
                group.create_task(send(clients[i % self.tenants], prompt))
        measurement.total_seconds = time.perf_counter() - start
        if not measurement.generations:
            assert last_error is not None
            raise last_error
        return measurement

    async def _answer(self, client: AsyncClient, prompt: list[int]) -> tuple[float, Generation]:
        events: list[Event] = []
        first_token_seconds = 0.0
        start = time.perf_counter()
        async for event in client.stream(
            prompt,
            max_tokens=self.output_tokens,
            temperature=0.0,
            ignore_eos=True,
            public_tokens=self.prefix_tokens,
        ):
            if not events:
                first_token_seconds = time.perf_counter() - start
            events.append(event)
        return first_token_seconds, generation_from_events(events)

    def _figures(self, measurement: Measurement, before: Stats, after: Stats) -> list[Figure]:
        generations = measurement.generations
        by_worker = [generation.timing.first_token_seconds for generation in generations]
        prompt = sum(generation.usage.prompt_tokens for generation in generations)
        cached = sum(generation.usage.cached_tokens for generation in generations)
        generated = sum(generation.usage.completion_tokens for generation in generations)
        peak_bytes = after.blocks.peak_live * after.blocks.block_bytes
        peak_bytes_unshared = after.blocks.peak_live_unshared * after.blocks.block_bytes
        rows_read = after.tokens.kv_rows_read - before.tokens.kv_rows_read
        rows_unshared = after.tokens.kv_rows_unshared - before.tokens.kv_rows_unshared
        return [
            Figure("requests answered", len(generations), "", note=f"seed {self.seed}"),
            *(Figure(f"failed: {name}", count, "") for name, count in sorted(measurement.failures.items())),
            *(
                Figure(f"first token p{percent}, {clock}'s clock", percentile(values, percent), "s")
                for clock, values in (("client", measurement.first_token_seconds), ("worker", by_worker))
                for percent in (50, 90, 99)
            ),
            Figure("output", generated / measurement.total_seconds, "tokens/s", note=f"{generated:,} tokens"),
            Figure("prompt tokens cached", cached, "tokens", note=f"{share(cached, prompt)} of {prompt:,}"),
            Figure(
                "KV in use at the peak",
                peak_bytes,
                "bytes",
                note=share_of_unshared(peak_bytes, peak_bytes_unshared),
            ),
            Figure("KV at the peak without sharing", peak_bytes_unshared, "bytes"),
            Figure("KV rows read", rows_read, "rows", note=share_of_unshared(rows_read, rows_unshared)),
            Figure("KV rows without sharing", rows_unshared, "rows"),
        ]

    def _token_ids(self, name: str, count: int, vocabulary_size: int) -> list[int]:
        rng = random.Random(f"{self.seed}-{name}")
        stop = min(_GREATEST_TOKEN_ID, vocabulary_size)
        start = min(_LEAST_TOKEN_ID, stop - 1)
        return [rng.randrange(start, stop) for _ in range(count)]
