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


_MOST_CODE_CHARS = 40
_MOST_MESSAGE_CHARS = 500


def token_gaps(moments: Sequence[float]) -> tuple[float, ...]:
    """`Answered.token_gaps` of messages with tokens that came at these moments."""
    return tuple(later - earlier for earlier, later in pairwise(moments))


class Refused(Exception):  # noqa: N818 - it is an answer, not a fault of ours
    """The server, or the way to it, ended the request without an answer."""

    def __init__(self, code: str, message: str) -> None:
        """Both may be what the server says: they are made fit to be shown."""
        super().__init__(shown(message, _MOST_MESSAGE_CHARS))
        self.code = shown(code, _MOST_CODE_CHARS)
        """A gRPC status such as "UNAVAILABLE", an HTTP one such as "429", or "CONNECTION"."""


def require_cached_within(prompt_tokens: int, cached_tokens: int) -> None:
    """Raise Refused for a usage that has more prompt tokens cached than there are."""
    if cached_tokens > prompt_tokens:
        raise Refused(
            "BAD_ANSWER",
            f"its usage cannot be: {cached_tokens:,} of {prompt_tokens:,} prompt tokens are cached",
        )


def shown(text: str, most_chars: int) -> str:
    """What a server says as one line that steers no terminal and can be written to a file, cut off when long.

    What cannot be shown becomes U+FFFD: control characters, those that turn the direction of writing, and
    halves of surrogate pairs.
    """
    line = " ".join(text[: 4 * most_chars].split())
    if len(line) > most_chars:
        line = f"{line[: most_chars - 1]}…"
    return "".join(char if char.isprintable() else "\ufffd" for char in line)


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
