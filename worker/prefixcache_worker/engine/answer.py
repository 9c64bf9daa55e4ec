"""A live request: its choices, and what it has come to."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from prefixcache_worker.engine.cache_scheme import SequenceHandle
from prefixcache_worker.engine.observer import FirstToken, NewTokens
from prefixcache_worker.engine.prefix_book import Prefix
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
    num_written_tokens: int = 0
    """Of the choices that have ended."""
    num_blocks: int = 0
    """What its choices held together when they were last counted."""
    block_seconds: float = 0.0
    started: float | None = None
    """When it first ran."""
    first_token: float | None = None
    """When it had one; a prompt that is only to be kept never has."""
    is_approximate: bool = False
    counted: float = 0.0
    """Until when the blocks are charged."""

    @property
    def tenant(self) -> str:
        return self.request.namespace.tenant

    @property
    def is_paused(self) -> bool:
        """Whether it gets no steps until its reader has caught up: all its choices or none."""
        return self.sequences[0].is_paused

    def start(self, now: float, handle: SequenceHandle) -> None:
        """It runs for the first time, with this handle of its first choice."""
        self.started = now
        self.num_cached_tokens = handle.num_cached_tokens
        self.num_restored_tokens = handle.num_restored_tokens

    def note_token(self, sequence: Sequence, tokens: NewTokens) -> None:
        """Count a token of one of its choices, and put down how long it took."""
        self.num_output_tokens += 1
        if self.first_token is None:
            assert self.started is not None
            self.first_token = tokens.now
            tokens.first.append(FirstToken(tokens.now - self.arrived, tokens.now - self.started))
        elif sequence.last_token is not None:
            tokens.gaps.append(tokens.now - sequence.last_token)
        sequence.last_token = tokens.now

    def charge_blocks(self, now: float) -> None:
        """Charge what it has held until now. O(1)."""
        self.block_seconds += self.num_blocks * (now - self.counted)
        self.counted = now

    def count_blocks(self, now: float) -> None:
        """Charge it if it holds another number of blocks than before; from now on it holds what it holds now.

        O(1) with one choice, else O(blocks of all of them).
        """
        if len(self.sequences) == 1:
            handle = self.sequences[0].handle
            num_blocks = 0 if handle is None else len(handle.held_blocks)
        else:
            handles = [sequence.handle for sequence in self.sequences if sequence.handle is not None]
            num_blocks = len(set().union(*(handle.held_blocks for handle in handles)))
        if num_blocks != self.num_blocks:
            self.charge_blocks(now)
            self.num_blocks = num_blocks

    def end_choice(self, sequence: Sequence) -> None:
        """One of its choices is not alive any more. Requires: it has been retired."""
        self.sequences.remove(sequence)
        self.num_written_tokens += sequence.num_written_tokens

    def usage(self) -> Usage:
        """What it has cost so far. It counts with its whole prompt from when it first runs."""
        num_prompt_tokens = 0 if self.started is None else len(self.request.prompt_token_ids)
        return Usage(
            prompt_tokens=num_prompt_tokens,
            cached_tokens=self.num_cached_tokens,
            computed_tokens=num_prompt_tokens - self.num_cached_tokens,
            completion_tokens=self.num_output_tokens,
            is_approximate=self.is_approximate,
            restored_tokens=self.num_restored_tokens,
            written_tokens=self.num_written_tokens
            + sum(sequence.num_written_tokens for sequence in self.sequences),
            block_seconds=self.block_seconds,
        )

    def completion(self, *, ended: float, prefix: Prefix | None = None) -> Completion:
        """The event that ends it. Requires: it has run, and every choice has ended."""
        assert not self.sequences
        assert self.started is not None
        return Completion(
            request_id=self.request.request_id,
            usage=self.usage(),
            timing=Timing(
                queue_seconds=self.started - self.arrived,
                first_token_seconds=(self.first_token or ended) - self.arrived,
                total_seconds=ended - self.arrived,
            ),
            prefix=prefix,
        )
