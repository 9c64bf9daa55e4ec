"""The matrix that a baseline covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prefixcache_client.burst import random_prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One load: so many requests at once, on a cache that has seen none of their tokens."""

    name: str
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    """So many at the beginning are the same in all prompts of a round."""

    @property
    def num_tokens(self) -> int:
        """Of one request, prompt and answer."""
        return self.prompt_tokens + self.output_tokens

    def prompts(self, vocabulary_size: int, seed: str) -> list[list[int]]:
        """Random tokens; the same seed makes the same ones, another one makes others."""
        return random_prompts(
            f"{seed} {self.name}",
            vocabulary_size,
            num_prompts=self.num_requests,
            shared_tokens=self.shared_tokens,
            own_tokens=self.prompt_tokens - self.shared_tokens,
        )


def _scenario(name: str, num_requests: int, prompt: int, output: int, shared: int = 0) -> Scenario:
    return Scenario(
        name=name,
        num_requests=num_requests,
        prompt_tokens=prompt,
        output_tokens=output,
        shared_tokens=shared,
    )


MATRIX = (
    _scenario("short, single", 1, 64, 64),
    _scenario("long, single", 1, 2048, 64),
    _scenario("short, many", 32, 64, 64),
    _scenario("long, many", 8, 1024, 64),
    _scenario("shared, many", 32, 1056, 64, shared=1024),
    *(_scenario(f"batch of {size}", size, 256, 32) for size in (1, 2, 4, 8, 16)),
)
"""What the founding article asks a baseline to cover (short and long sequences, one request and many, several
batch sizes), and many requests over one prefix, which is what this worker is for."""


def fitting(scenarios: Sequence[Scenario], context_length: int) -> list[Scenario]:
    """Those whose requests a worker takes."""
    return [scenario for scenario in scenarios if scenario.num_tokens <= context_length]
