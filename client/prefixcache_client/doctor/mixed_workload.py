"""The doctor's own requests: block borders, equal beginnings, batches of all lengths, cancelled ones."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Unpack

from prefixcache_client.answers import Delta, Generation, ModelInfo
from prefixcache_client.async_client import AsyncClient
from prefixcache_client.cache_answers import Stats
from prefixcache_client.doctor.hits import Hit, Twins
from prefixcache_client.doctor.random_tokens import random_tokens
from prefixcache_client.doctor.releases import End
from prefixcache_client.messages import GenerateOptions

_SHARED_ROWS = 256
_NUM_SHARING = 4
_LONGEST_ROWS = 400
_NUM_CANCELLED_TOKENS = 200
_NUM_SETTLING_READS = 25
_SETTLING_SECONDS = 0.02


@dataclass(slots=True)
class Sent:
    """What the doctor has asked for, to tell its load from that of others."""

    requests: int = 0
    prompt_tokens: int = 0
    least_generated_tokens: int = 0
    most_generated_tokens: int = 0
    """More than the least where an answer was cancelled."""

    def accounts_for(self, before: Stats, after: Stats) -> bool:
        """Whether all that the worker has done between the two is what was sent. Requires: all has ended."""
        requests_before, requests_after = before.requests, after.requests
        ended = sum(
            getattr(requests_after, name) - getattr(requests_before, name)
            for name in ("finished", "cancelled", "failed")
        )
        generated = after.tokens.generated - before.tokens.generated
        return (
            ended == self.requests
            and after.tokens.prompt - before.tokens.prompt == self.prompt_tokens
            and self.least_generated_tokens <= generated <= self.most_generated_tokens
        )


@dataclass(slots=True)
class MixedWorkload:
    """Bounded requests with random tokens, under a salt of their own: they share with nobody's.

    A prompt takes at most half of the context, an answer a quarter. Requires: a context of 64 tokens.
    """

    client: AsyncClient
    info: ModelInfo
    salt: str
    random: random.Random
    max_running: int
    """Choices that may run at the same time."""
    num_sent: int = 0
    sent: Sent = field(default_factory=Sent)
    hits: list[Hit] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    twins: list[Twins] = field(default_factory=list)

    async def run(self) -> None:
        """Everything in turn; some seconds on a small model."""
        await self._repeat_at_borders()
        await self._settle("prompts at block borders")
        await self._diverge()
        await self._settle("prompts that part inside a block")
        await self._answer_twice()
        await self._settle("prompts answered twice")
        await self._share_a_prefix()
        await self._settle("requests over one prefix")
        await self._mix_lengths()
        await self._settle("requests of all lengths together")
        num_choices = min(3, self.max_running)
        prompt = self._tokens(2 * self._block + 3)
        await self._answer(prompt, max_tokens=12, n=num_choices, temperature=1.0, seed=1)
        await self._settle("several answers to one prompt")
        await self._cancel()
        await self._settle("a request that was cancelled")
        for _ in range(3):
            await self._short()
        if self.ends[-1].live_blocks:
            await self._answer(self._tokens(3), max_tokens=min(96, self.info.context_length // 4))
            await self._settle("a long answer")
            await self._short()

    @property
    def most_blocks(self) -> int:
        """Blocks that the requests hold at the same time, at most."""
        sharing = _SHARED_ROWS + _NUM_SHARING * 64
        mixed = sum(self._mixed_lengths()) + 4 * 32
        return -(-max(sharing, mixed) // self._block) + 4

    @property
    def _most_prompt_tokens(self) -> int:
        return self.info.context_length // 2

    @property
    def _block(self) -> int:
        return self.info.block_size

    async def _repeat_at_borders(self) -> None:
        block = self._block
        lengths = {1, 2, block - 1, block, block + 1, 2 * block - 1, 2 * block, 2 * block + 1}
        for length in sorted(lengths - {0}):
            if length > self._most_prompt_tokens:
                continue
            prompt = self._tokens(length)
            await self._answer(prompt, max_tokens=1)
            again = await self._answer(prompt, max_tokens=1)
            self._note(f"{length} tokens again", prompt, length, again)
            longer = [*prompt, *self._tokens(1)]
            more = await self._answer(longer, max_tokens=1)
            self._note(f"{length} tokens and one more", longer, length, more)

    async def _diverge(self) -> None:
        block = self._block
        base = self._tokens(4 * block + 3)
        await self._answer(base, max_tokens=1)
        for place in sorted({2 * block - 1, 2 * block, 2 * block + 1, 3 * block + block // 2}):
            if place >= len(base):
                continue
            prompt = self._parting(base, place)
            answer = await self._answer(prompt, max_tokens=1)
            self._note(f"parting behind {place} tokens", prompt, place, answer)

    async def _answer_twice(self) -> None:
        block = self._block
        base = self._tokens(3 * block + 3)
        await self._answer(base, max_tokens=1)
        for place in sorted({block + 1, 2 * block - 1, 2 * block + block // 2, 3 * block}):
            if place >= len(base):
                continue
            prompt = self._parting(base, place)
            cold = await self._answer(prompt, max_tokens=6, logprobs=0, use_cache=False)
            warm = await self._answer(prompt, max_tokens=6, logprobs=0)
            self._note(f"answered twice, parting behind {place} tokens", prompt, place, warm)
            self.twins.append(_twins(f"parting behind {place} tokens", cold, warm))

    async def _share_a_prefix(self) -> None:
        prefix = self._tokens(_SHARED_ROWS)
        await self._answer(prefix, max_tokens=1)
        await self._together([[*prefix, *self._tokens(8)] for _ in range(_NUM_SHARING)], max_tokens=24)

    async def _mix_lengths(self) -> None:
        await self._together([self._tokens(length) for length in self._mixed_lengths()], max_tokens=16)

    def _mixed_lengths(self) -> list[int]:
        block, most = self._block, min(_LONGEST_ROWS, self._most_prompt_tokens)
        return [min(length, most) for length in (1, block, 5 * block + 3, 20 * block)]

    async def _cancel(self) -> None:
        prompt = self._tokens(self._block + 3)
        most = min(_NUM_CANCELLED_TOKENS, self.info.context_length // 4)
        self.sent.requests += 1
        self.sent.prompt_tokens += len(prompt)
        self.sent.most_generated_tokens += most
        options = self._options(max_tokens=most)
        async with aclosing(self.client.stream(prompt, **options)) as events:
            num_tokens = 0
            async for event in events:
                num_tokens += len(event.token_ids) if isinstance(event, Delta) else 0
                if num_tokens >= 3:
                    break

    async def _short(self) -> None:
        await self._answer(self._tokens(self._block + 3), max_tokens=3)
        await self._settle("a short answer")

    async def _together(self, prompts: Sequence[Sequence[int]], *, max_tokens: int) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for prompt in prompts:
                    group.create_task(self._answer(prompt, max_tokens=max_tokens))
        except ExceptionGroup as failures:  # the first failure cancelled the rest and tells enough
            raise failures.exceptions[0] from None

    async def _answer(self, prompt: Sequence[int], **options: Unpack[GenerateOptions]) -> Generation:
        generation = await self.client.generate(prompt, **self._options(**options))
        self.sent.requests += 1
        self.sent.prompt_tokens += len(prompt)
        self.sent.least_generated_tokens += generation.usage.completion_tokens
        self.sent.most_generated_tokens += generation.usage.completion_tokens
        return generation

    def _options(self, **options: Unpack[GenerateOptions]) -> GenerateOptions:
        self.num_sent += 1
        name = f"{self.salt}-{self.num_sent}"  # so that an operator knows it in the log
        return {"request_id": name, "temperature": 0.0, "ignore_eos": True, "salt": self.salt, **options}

    async def _settle(self, name: str) -> None:
        """Note what is left; a cancelled request may take a moment to be noticed."""
        for _ in range(_NUM_SETTLING_READS):
            stats = await self.client.stats()
            num_requests = stats.requests.running + stats.requests.waiting
            if stats.blocks.live == num_requests == 0:
                break
            await asyncio.sleep(_SETTLING_SECONDS)
        self.ends.append(End(name, stats.blocks.live, num_requests))

    def _note(self, name: str, prompt: Sequence[int], num_common: int, answer: Generation) -> None:
        self.hits.append(Hit(name, len(prompt), num_common, answer.usage.cached_tokens))

    def _tokens(self, count: int) -> list[int]:
        return random_tokens(self.random, self.info, min(count, self._most_prompt_tokens))

    def _parting(self, base: Sequence[int], place: int) -> list[int]:
        """A prompt that has the first `place` tokens of another one in common with it, and no more."""
        other = self._tokens(1)
        while other[0] == base[place]:
            other = self._tokens(1)
        return [*base[:place], *other, *self._tokens(3)]


def _twins(name: str, cold: Generation, warm: Generation) -> Twins:
    [one], [other] = cold.choices, warm.choices
    differences = []
    for i, (score, its_twin) in enumerate(zip(one.logprobs, other.logprobs, strict=False)):
        differences.append(abs(score.logprob - its_twin.logprob))
        if one.token_ids[i] != other.token_ids[i]:
            break  # what follows answers another text
    return Twins(
        name, warm.usage.cached_tokens, one.token_ids == other.token_ids, max(differences, default=0.0)
    )
