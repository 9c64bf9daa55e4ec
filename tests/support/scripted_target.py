"""A target inside the test: answers after a time of its loop, and remembers what it was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from prefixcache_client.cache_answers import Stats
from prefixcache_client.load.session import Session, Turn
from prefixcache_client.load.target import Answered, Refused
from prefixcache_client.messages import Prompt


@dataclass(slots=True, kw_only=True)
class Sent:
    """One request as it came."""

    prompt: Prompt
    max_tokens: int
    tenant: str | None
    public_tokens: int
    public_messages: int
    moment: float


@dataclass(slots=True, kw_only=True)
class ScriptedTarget:
    """Answers request i, from 0 on, after `latency(i)` seconds with token 900 + i and the text " a{i}"."""

    latency: Callable[[int], float] = lambda number: 0.0
    refuses: Callable[[int], Refused | None] = lambda number: None
    tells_ids: bool = True
    sent: list[Sent] = field(default_factory=list)
    num_in_flight: int = 0
    most_in_flight: int = 0

    async def describe(self) -> dict[str, str | int | float]:
        return {"kind": "scripted"}

    async def send(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        tenant: str | None,
        public_tokens: int,
        public_messages: int,
    ) -> Answered:
        number, loop = len(self.sent), asyncio.get_running_loop()
        self.sent.append(
            Sent(
                prompt=prompt,
                max_tokens=max_tokens,
                tenant=tenant,
                public_tokens=public_tokens,
                public_messages=public_messages,
                moment=loop.time(),
            )
        )
        self.num_in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.num_in_flight)
        try:
            await asyncio.sleep(self.latency(number))
        finally:
            self.num_in_flight -= 1
        if (refused := self.refuses(number)) is not None:
            raise refused
        return Answered(
            first_token=loop.time(),
            token_gaps=(),
            text=f" a{number}",
            token_ids=(900 + number,) if self.tells_ids else (),
            prompt_tokens=len(prompt),
            cached_tokens=None,
            output_tokens=1,
        )

    async def stats(self) -> Stats | None:
        return None

    async def close(self) -> None:
        """Nothing is open."""


@dataclass(slots=True, kw_only=True)
class ListedWorkload:
    """The sessions of a list, or of an iterator that may have no end."""

    listed: Sequence[Session] | Iterator[Session]
    first: Sequence[Session] = ()
    """To warm up."""
    notes: Sequence[str] = ()

    @property
    def description(self) -> dict[str, str | int | float]:
        return {"workload": "listed"}

    def fitted_to(self, server: Mapping[str, str | int | float]) -> Self:
        return self

    def warm_up(self) -> Iterator[Session]:
        yield from self.first

    def sessions(self) -> Iterator[Session]:
        yield from self.listed

    @property
    def num_sessions(self) -> int | None:
        return len(self.listed) if isinstance(self.listed, Sequence) else None


def one_turn(prompt: Prompt = (5, 6), **fields: object) -> Session:
    """A session of one request."""
    return Session(turns=(Turn(prompt=prompt, max_tokens=1),), **fields)  # type: ignore[arg-type]
