"""Whom a load is sent to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from prefixcache_client.cache_answers import Stats
from prefixcache_client.messages import Prompt


class Answered(NamedTuple):
    """A complete answer. Moments are readings of `time.perf_counter`."""

    first_token: float | None
    """When the first message with a token came; None: there was none."""
    token_gaps: tuple[float, ...]
    """Seconds between such a message and the next one."""
    text: str
    token_ids: tuple[int, ...]
    """Empty where the server tells only text."""
    prompt_tokens: int | None
    """None: the server does not say, and the prompt was text."""
    cached_tokens: int | None
    output_tokens: int


def token_gaps(moments: Sequence[float]) -> tuple[float, ...]:
    """`Answered.token_gaps` of messages with tokens that came at these moments."""
    return tuple(later - earlier for earlier, later in pairwise(moments))


class Refused(Exception):  # noqa: N818 - it is an answer, not a fault of ours
    """The server, or the way to it, ended the request without an answer."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        """A gRPC status such as "UNAVAILABLE", an HTTP one such as "429", or "CONNECTION"."""


class Target(Protocol):
    """A server that answers prompts."""

    async def describe(self) -> dict[str, str | int | float]:
        """Its kind, address, model and limits. Raises PrefixCacheClientError when it cannot be reached, or is
        no such server."""
        ...

    async def send(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        tenant: str | None,
        public_tokens: int,
        public_messages: int,
    ) -> Answered:
        """Send one prompt, greedy and without stop, and wait for the whole answer. Raises Refused."""
        ...

    async def stats(self) -> Stats | None:
        """Counts of the server; None where it has none for the caller."""
        ...

    async def close(self) -> None:
        """Drop the connections."""
        ...
