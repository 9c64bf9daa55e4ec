"""Prompts with one common beginning."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from prefixcache_client.load.session import Session, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Session i is one request of tenant i modulo `tenants`. The common beginning is public."""

    prefix_tokens: int = field(default=1024, metadata={"help": "tokens that all prompts begin with"})
    suffix_tokens: int = field(default=32, metadata={"help": "tokens of each prompt's own"})
    output_tokens: int = field(default=32, metadata={"help": "tokens generated"})
    tenants: int = field(default=1, metadata={"help": "in whose names, in turn"})
    vocabulary_size: int = 32_000
    seed: int = 0

    @property
    def description(self) -> dict[str, str | int | float]:
        return {
            "kind": "shared-prefix",
            "prefix_tokens": self.prefix_tokens,
            "suffix_tokens": self.suffix_tokens,
            "output_tokens": self.output_tokens,
            "tenants": self.tenants,
            "vocabulary_size": self.vocabulary_size,
            "seed": self.seed,
        }

    @property
    def num_sessions(self) -> int | None:
        return None

    def fitted_to(self, server: Mapping[str, str | int | float]) -> Self:
        """The same for a server that describes itself so."""
        return replace(self, vocabulary_size=int(server.get("vocabulary_size", self.vocabulary_size)))

    def warm_up(self) -> Iterator[Session]:
        """The common beginning and a token."""
        yield self._session([*self._token_ids("prefix", self.prefix_tokens), 100], 1, None)

    def sessions(self) -> Iterator[Session]:
        """Without end."""
        prefix = self._token_ids("prefix", self.prefix_tokens)
        number = 0
        while True:
            tenant = f"bench-{number % self.tenants}" if self.tenants > 1 else None
            own = self._token_ids(f"suffix-{number}", self.suffix_tokens)
            yield self._session(prefix + own, self.output_tokens, tenant)
            number += 1

    def _session(self, prompt: list[int], max_tokens: int, tenant: str | None) -> Session:
        return Session(
            turns=(Turn(prompt=prompt, max_tokens=max_tokens),),
            tenant=tenant,
            public_tokens=self.prefix_tokens,
        )

    def _token_ids(self, name: str, count: int) -> list[int]:
        rng = random.Random(f"{self.seed}-{name}")
        return rng.choices(range(100, self.vocabulary_size), k=count)
