"""The load of `prefixcache schemes`: a burst of requests that begin the same, on a cold cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from prefixcache_client.answers import ModelInfo
from prefixcache_client.async_client import AsyncClient
from prefixcache_client.burst import Burst, random_prompts, send_burst


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
        return random_prompts(
            seed,
            vocabulary_size,
            num_prompts=num_requests,
            shared_tokens=self.prefix_tokens,
            own_tokens=self.suffix_tokens,
        )

    async def send(self, client: AsyncClient, prompts: Sequence[Sequence[int]]) -> Burst:
        """Send one request for each prompt, as `send_burst` does."""
        return await send_burst(client, prompts, output_tokens=self.output_tokens)
