"""Steps of the doctor's own answers under the worker's profiler."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from prefixcache_client.answers import Generation, ModelInfo
from prefixcache_client.async_client import AsyncClient
from prefixcache_client.diagnosis_answers import ProfiledSteps, StepProfile
from prefixcache_client.doctor.copies import ProfiledAnswer
from prefixcache_client.doctor.random_tokens import random_tokens
from prefixcache_client.errors import PrefixCacheClientError

_NUM_STEPS = 20
_NUM_BEGINNING_STEPS = 12
_SHORT_ROWS, _LONG_ROWS = 64, 768
_ANSWER_TOKENS = 64
_BEGINNING_PROMPT_TOKENS, _BEGINNING_TOKENS = 8, 3
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledAnswers:
    """What the profiler saw."""

    answers: tuple[ProfiledAnswer, ...]
    """Decode steps of one sequence, behind few rows and behind many."""
    beginnings: StepProfile
    """Steps in which requests begin."""
    trace: bytes
    """Of the steps behind many rows; empty unless it was asked for."""

    @property
    def is_alone(self) -> bool:
        """Whether the steps computed no more tokens than the doctor's own requests have."""
        per_answer = _BEGINNING_PROMPT_TOKENS + _BEGINNING_TOKENS - 1  # in _BEGINNING_TOKENS steps
        return all(answer.profile.num_tokens <= answer.profile.num_steps for answer in self.answers) and (
            self.beginnings.num_tokens * _BEGINNING_TOKENS <= self.beginnings.num_steps * per_answer
        )


async def profile_answers(
    client: AsyncClient, info: ModelInfo, rng: random.Random, *, salt: str, with_trace: bool
) -> ProfiledAnswers:
    """Profile three short runs: one answer after another to the same prompt, until enough has been seen.

    It begins behind whole cached blocks, under `salt`: its first step computes one token, like all others.
    """
    num_tokens = min(_ANSWER_TOKENS, info.context_length // 4)
    answers = []
    for most_rows in (_SHORT_ROWS, _LONG_ROWS):
        num_rows = max(1, min(most_rows, info.context_length // 2) // info.block_size) * info.block_size
        prompt = random_tokens(rng, info, min(num_rows + 1, info.context_length - num_tokens))

        answer = partial(client.generate, prompt, temperature=0.0, ignore_eos=True, salt=salt)
        await answer(max_tokens=1)
        profiled = await _profiled(
            client, partial(answer, max_tokens=num_tokens), num_steps=_NUM_STEPS, with_trace=with_trace
        )
        answers.append(ProfiledAnswer(len(prompt) + num_tokens // 2, profiled.profile))
    beginnings = await _profiled(
        client, lambda: _begin(client, info, rng), num_steps=_NUM_BEGINNING_STEPS, with_trace=False
    )
    return ProfiledAnswers(answers=tuple(answers), beginnings=beginnings.profile, trace=profiled.trace)


async def _begin(client: AsyncClient, info: ModelInfo, rng: random.Random) -> Generation:
    prompt = random_tokens(rng, info, _BEGINNING_PROMPT_TOKENS)
    return await client.generate(
        prompt, max_tokens=_BEGINNING_TOKENS, temperature=0.0, ignore_eos=True, use_cache=False
    )


async def _profiled(
    client: AsyncClient,
    answer: Callable[[], Awaitable[Generation]],
    *,
    num_steps: int,
    with_trace: bool,
) -> ProfiledSteps:
    """The profile of steps while one answer is made after another; the last of them is left unfinished."""

    async def keep_answering() -> None:
        while True:
            await answer()

    answering = asyncio.create_task(keep_answering())
    profiling = asyncio.create_task(
        client.diagnosis.profile_steps(
            num_steps=num_steps, timeout_seconds=_TIMEOUT_SECONDS, with_trace=with_trace
        )
    )
    try:
        await asyncio.wait({answering, profiling}, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            answering.result()  # raises: it ends in no other way
        return await profiling
    finally:
        for task in (answering, profiling):
            task.cancel()
            with suppress(asyncio.CancelledError, PrefixCacheClientError):
                await task
