"""Limits that an answer has to keep to be a good one."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache_client.load.measurement import RequestResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """The most that each may take, counted as `RequestResult` counts it. None: no limit."""

    first_token_seconds: float | None = None
    seconds_per_token: float | None = None
    total_seconds: float | None = None

    @property
    def has_limits(self) -> bool:
        return (self.first_token_seconds, self.seconds_per_token, self.total_seconds) != (None, None, None)

    def is_kept(self, result: RequestResult) -> bool:
        """Whether it was answered within every limit.

        An answer of less than two tokens keeps any time per token. One without a token is held to the limit
        of the first token by its end: no later moment told the caller anything.
        """
        if result.error is not None:
            return False
        first_token_seconds = result.first_token_seconds
        return (
            _is_within(
                result.total_seconds if first_token_seconds is None else first_token_seconds,
                self.first_token_seconds,
            )
            and _is_within(result.seconds_per_token, self.seconds_per_token)
            and _is_within(result.total_seconds, self.total_seconds)
        )


def _is_within(value: float | None, limit: float | None) -> bool:
    return value is None or limit is None or value <= limit
