"""Answers to prompts that never change: their texts and their speed, to compare before and after a fix."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from prefixcache_client.async_client import AsyncClient

PROMPTS = (
    "The capital of France is",
    "A recipe for bread begins with",
    "The three laws of thermodynamics say that",
    "def fibonacci(n):\n",
)
_NUM_TOKENS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedAnswers:
    """What a worker answered, and how fast, alone on the worker by its own clock."""

    texts: dict[str, str]
    """By prompt; at temperature 0."""
    first_token_seconds: list[float]
    """One for each round: the median over the prompts."""
    token_seconds: list[float]
    """Time between two tokens, in the same way."""

    @property
    def tokens_per_second(self) -> float:
        """Of a single answer. The median over the rounds."""
        return 1 / statistics.median(self.token_seconds)


async def fixed_answers(client: AsyncClient, *, num_rounds: int) -> FixedAnswers:
    """Ask for them, one after the other, past the cache. Requires: at least one round."""
    texts: dict[str, str] = {}
    first_token_seconds, token_seconds = [], []
    for _ in range(num_rounds):
        firsts, gaps = [], []
        for prompt in PROMPTS:
            answer = await client.generate(
                prompt, max_tokens=_NUM_TOKENS, temperature=0.0, ignore_eos=True, use_cache=False
            )
            texts[prompt] = answer.text
            timing, num_tokens = answer.timing, answer.usage.completion_tokens
            firsts.append(timing.first_token_seconds - timing.queue_seconds)
            gaps.append(max(timing.total_seconds - timing.first_token_seconds, 1e-9) / max(1, num_tokens - 1))
        first_token_seconds.append(statistics.median(firsts))
        token_seconds.append(statistics.median(gaps))
    return FixedAnswers(texts=texts, first_token_seconds=first_token_seconds, token_seconds=token_seconds)
