"""What one request has come to, on its way from the engine to its reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType

from prefixcache_worker.engine.request import (
    AnswerEvent,
    Completion,
    Delta,
    Event,
    Failure,
    PromptLogprobs,
    Request,
)
from prefixcache_worker.errors import SlowReaderError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLimits:
    """How far a reader may fall behind."""

    max_unread_tokens: int = 1024
    """With so many tokens unread, of the answer and of scored prompt, the request is paused."""
    stall_seconds: float = 30.0
    """A paused request is ended when nothing is read for so long."""


class RequestStream:
    """The events of one request. Leaving the `async with` block cancels what still runs.

    Used on the asyncio loop only. What waits for the reader is bounded: with `max_unread_tokens` unread the
    request is paused, and goes on when half of them are read. The few steps that are under way when it is
    paused add what they have, at most a token for each choice or a part of a scored prompt. When nothing is
    read for `stall_seconds` then, the request is ended with SlowReaderError, and what was unread is dropped.
    """

    def __init__(
        self,
        key: int,
        request: Request,
        limits: ReaderLimits,
        *,
        cancel: Callable[[RequestStream], None],
        set_paused: Callable[[RequestStream, bool], None],
    ) -> None:
        """`cancel` drops the request wherever it is, and may be called more than once; `set_paused` stops it
        and lets it go on."""
        self.key = key
        self.client_name = (request.namespace.tenant, request.request_id)
        """What the client may know it by: unique among the tenant's live requests."""
        self._limits = limits
        self._cancel = cancel
        self._set_paused = set_paused
        self._unread: deque[Event] = deque()
        self._num_unread_tokens = 0
        self._arrived = asyncio.Event()
        self._has_ended = False
        self._stall: asyncio.TimerHandle | None = None
        """Runs while the request is paused."""

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_clock()
        self._cancel(self)

    async def __aiter__(self) -> AsyncIterator[AnswerEvent]:
        """Its events, the completion last. Raises what ended the request if it could not be finished."""
        while not self._has_ended:
            while not self._unread:
                self._arrived.clear()
                await self._arrived.wait()
            event = self._take()
            if isinstance(event, Failure):
                raise event.error
            yield event

    async def joined(self) -> AsyncIterator[AnswerEvent]:
        """The same in fewer pieces: what arrived since the last one was read is one delta for each choice."""
        async for event in self:
            for merged in merge_deltas([event, *self.take_ready()]):
                yield merged

    def take_ready(self) -> list[AnswerEvent]:
        """What has arrived and was not read yet, without waiting; a failure stays for the iterator."""
        ready: list[AnswerEvent] = []
        while self._unread and not isinstance(self._unread[0], Failure):
            event = self._take()
            assert not isinstance(event, Failure)
            ready.append(event)
        return ready

    def put(self, event: Event) -> None:
        """Add an event. Nothing may follow a completion or a failure."""
        self._unread.append(event)
        self._num_unread_tokens += _num_tokens(event)
        self._arrived.set()
        if isinstance(event, Completion | Failure):
            self._stop_clock()
        elif self._num_unread_tokens >= self._limits.max_unread_tokens and self._stall is None:
            self._set_paused(self, True)
            self._start_clock()

    def fail(self, error: Exception) -> None:
        """End the request with an error, which follows what is unread."""
        self.put(Failure(error))
        self._cancel(self)

    def _take(self) -> Event:
        event = self._unread.popleft()
        self._has_ended = isinstance(event, Completion | Failure)
        self._num_unread_tokens -= _num_tokens(event)
        if self._stall is not None:
            self._stop_clock()
            if self._num_unread_tokens <= self._limits.max_unread_tokens // 2:
                self._set_paused(self, False)
            else:
                self._start_clock()
        return event

    def _start_clock(self) -> None:
        loop = asyncio.get_running_loop()
        self._stall = loop.call_later(self._limits.stall_seconds, self._give_up)

    def _stop_clock(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _give_up(self) -> None:
        error = SlowReaderError(
            f"{self._num_unread_tokens} tokens are unread, and none was read for "
            f"{self._limits.stall_seconds:g} seconds; read faster, or ask for fewer tokens"
        )
        self._unread.clear()
        self._num_unread_tokens = 0
        self.fail(error)


def _num_tokens(event: Event) -> int:
    match event:
        case Delta():
            return len(event.token_ids)
        case PromptLogprobs():
            return len(event.logprobs)
        case _:
            return 0


def merge_deltas(events: Iterable[AnswerEvent]) -> list[AnswerEvent]:
    """The same events with one delta for each choice; texts and tokens keep their order. O(tokens)."""
    first: list[AnswerEvent] = []
    last: list[AnswerEvent] = []
    deltas_by_choice: dict[int, list[Delta]] = {}
    for event in events:
        match event:
            case PromptLogprobs():
                first.append(event)
            case Delta():
                deltas_by_choice.setdefault(event.index, []).append(event)
            case Completion():
                last.append(event)
    return [*first, *map(_joined, deltas_by_choice.values()), *last]


def _joined(deltas: list[Delta]) -> Delta:
    if len(deltas) == 1:
        return deltas[0]
    return Delta(
        index=deltas[0].index,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        finish_reason=deltas[-1].finish_reason,
        stop_reason=deltas[-1].stop_reason,
        logprobs=tuple(score for delta in deltas for score in delta.logprobs),
    )
