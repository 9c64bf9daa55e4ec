"""What came of a load."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache_client.cache_answers import Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """One request, by the sender's clock. Moments are seconds since the load began."""

    session: int
    """Counts from 0, in the order of sending."""
    turn: int
    """Counts from 0."""
    tenant: str | None
    planned: float
    """When it should have been sent: latencies count from here."""
    sent: float
    """When it was."""
    first_token: float | None
    """None: there was none."""
    ended: float
    token_gaps: tuple[float, ...]
    """Seconds between a message with tokens and the next one, first to last."""
    prompt_tokens: int | None
    """None: the server does not say, and the prompt was text."""
    cached_tokens: int | None
    """None: the server does not say."""
    output_tokens: int
    error: str | None
    """None: it was answered; else the code of its status, such as "RESOURCE_EXHAUSTED" or "429"."""

    @property
    def first_token_seconds(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.planned

    @property
    def seconds_per_token(self) -> float | None:
        """After the first token, on average; None where there are less than two."""
        if self.first_token is None or self.output_tokens < 2:
            return None
        return sum(self.token_gaps) / (self.output_tokens - 1)

    @property
    def total_seconds(self) -> float:
        return self.ended - self.planned

    @property
    def late_seconds(self) -> float:
        """So much after its time it was sent."""
        return self.sent - self.planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One run of a load, whole or broken off."""

    workload: dict[str, str | int | float]
    """`Workload.description`."""
    arrivals: dict[str, str | int | float]
    """How it was sent, the same way."""
    target: dict[str, str | int | float]
    """Of the server: kind, address, and what it says of itself; enough to compare two measurements."""
    began: str
    """The time of day in UTC, ISO 8601."""
    seconds: float
    """From the first planned moment to the last end."""
    results: tuple[RequestResult, ...]
    """In the order of sending. Without the warm-up."""
    num_planned: int | None
    """Requests that there would have been; None: without end."""
    was_interrupted: bool
    stats_before: Stats | None
    """None: the server does not say."""
    stats_after: Stats | None
