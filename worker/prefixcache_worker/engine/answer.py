"""A live request: its choices, and what it has come to."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from prefixcache_worker.engine.cache_scheme import SequenceHandle
from prefixcache_worker.engine.observer import Observer
from prefixcache_worker.engine.request import Completion, Request, Timing, Usage
from prefixcache_worker.engine.sequence import Sequence


@dataclass(slots=True)
class Answer:
    """What the engine knows of a request from `add` to its end. Clock readings are the engine clock's."""

    key: Hashable
    request: Request
    arrived: float
    sequences: list[Sequence]
    """Choices that have not ended."""
    num_cached_tokens: int = 0
    num_restored_tokens: int = 0
    num_output_tokens: int = 0
    started: float | None = None
    """When it first ran."""
    first_token: float | None = None
    is_approximate: bool = False

    @property
    def is_paused(self) -> bool:
        """Whether it gets no steps until its reader has caught up: all its choices or none."""
        return self.sequences[0].is_paused

    def start(self, now: float, handle: SequenceHandle) -> None:
        """It runs for the first time, with this handle of its first choice."""
        self.started = now
        self.num_cached_tokens = handle.num_cached_tokens
        self.num_restored_tokens = handle.num_restored_tokens

    def note_token(self, sequence: Sequence, now: float, observer: Observer) -> None:
        """Count a token of one of its choices."""
        self.num_output_tokens += 1
        if self.first_token is None:
            self.first_token = now
            observer.first_token(now - self.arrived)
        elif sequence.last_token is not None:
            observer.next_token(now - sequence.last_token)
        sequence.last_token = now

    def completion(self, *, ended: float) -> Completion:
        """The event that ends it. Requires: it has run, and every choice has ended."""
        assert not self.sequences
        assert self.started is not None
        assert self.first_token is not None
        num_prompt_tokens = len(self.request.prompt_token_ids)
        return Completion(
            request_id=self.request.request_id,
            usage=Usage(
                prompt_tokens=num_prompt_tokens,
                cached_tokens=self.num_cached_tokens,
                computed_tokens=num_prompt_tokens - self.num_cached_tokens,
                completion_tokens=self.num_output_tokens,
                restored_tokens=self.num_restored_tokens,
                is_approximate=self.is_approximate,
            ),
            timing=Timing(
                queue_seconds=self.started - self.arrived,
                first_token_seconds=self.first_token - self.arrived,
                total_seconds=ended - self.arrived,
            ),
        )
