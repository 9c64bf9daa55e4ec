"""What a workload consists of: conversations with one server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from prefixcache_client.messages import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a session."""

    prompt: Prompt
    """The whole prompt; with `continues`, what comes behind the turns before and their answers.

    All prompts of a session are of one kind: token ids, texts, or messages.
    """
    max_tokens: int
    continues: bool = False
    think_seconds: float = 0.0
    """From the end of the turn before to this one. Of the first turn it means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Turns that are sent one after the other, each when the answer before it is complete."""

    turns: tuple[Turn, ...]
    """At least one."""
    tenant: str | None = None
    """None: whoever the server takes the caller for."""
    seconds: float | None = None
    """When its first turn is due, from the start of the workload; None: when the arrivals say so."""
    public_tokens: int = 0
    """So many tokens at the beginning of every prompt may be shared with other tenants."""
    public_messages: int = 0
    """The same in messages, where prompts are messages."""


class Workload(Protocol):
    """Sessions to send. The same settings and seed make the same sessions, in any process."""

    @property
    def description(self) -> dict[str, str | int | float]:
        """What makes it, setting by setting: enough to make it again."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What was left out or cut off to fit the server, a sentence each."""
        ...

    def fitted_to(self, server: Mapping[str, str | int | float]) -> Self:
        """The same for a server that describes itself so (`Target.describe`).

        Raises PrefixCacheClientError, TraceError or OSError when there are no such sessions.
        """
        ...

    def warm_up(self) -> Iterator[Session]:
        """What is sent, one after the other, and not measured, before anything else."""
        ...

    def sessions(self) -> Iterator[Session]:
        """Those to measure, by their `seconds`, made as they are asked for; may be without end."""
        ...

    @property
    def num_sessions(self) -> int | None:
        """None: without end."""
        ...
