"""What the cache's events look like from outside the engine's thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import NamedTuple

from prefixcache import Event, EventLog, PrefixCache
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.errors import EngineStoppedError

LOG_BLOCKS = 16_384
"""The log names at most so many blocks, which takes 2 to 7 MB: as many as a watcher may fall behind."""
LOG_POOLS = 16
"""And no more than so many times the pool's: whoever has missed those is told the state sooner."""
_MAX_EVENTS_AT_ONCE = 256


class StateComplete(NamedTuple):
    """All that was cached when a watcher came has been told."""

    sequence_number: int


def new_event_log(num_blocks: int) -> EventLog:
    """An empty log for a pool of so many blocks, with numbers above those of every worker before."""
    return EventLog(min(LOG_BLOCKS, LOG_POOLS * num_blocks), first_sequence_number=time.time_ns())


class EventFeed:
    """Lets watchers follow the cache, each at its own pace.

    Nothing waits for a watcher: it takes events from the log when it is ready for them, and when the log
    has moved on without it, its watch ends with EventGapError.

    `watch` and `close` are called on the engine loop's asyncio loop.
    """

    def __init__(self, engine_loop: EngineLoop, cache: PrefixCache, log: EventLog) -> None:
        """Requires: the cache tells `log`, nobody else listens to it, and the engine has not started."""
        self._engine_loop = engine_loop
        self._cache = cache
        self._log = log
        self._asyncio_loop: asyncio.AbstractEventLoop | None = None  # None: nobody watches
        self._changed = asyncio.Event()
        self._is_noted = False
        self._closed = False
        self._num_watchers = 0
        log.listen(self._note)

    async def watch(self, from_sequence_number: int | None) -> AsyncGenerator[Event | StateComplete, None]:
        """The events from a number on; without one all that is cached now, and then what follows.

        Never ends by itself. Raises EventGapError when the log does not have the next event (any more, or
        never had), and EngineStoppedError when the worker stops.
        """
        self._asyncio_loop = asyncio.get_running_loop()
        self._num_watchers += 1
        try:
            number = from_sequence_number
            if number is None:
                state = await self._engine_loop.call(lambda _: self._cache.event_state())
                for stored in state.events:
                    yield stored
                number = state.next_sequence_number
                yield StateComplete(number - 1)
            while True:
                changed = self._changed  # taken first, so that what comes after the look wakes us
                events = await self._since(number)
                for event in events:
                    yield event
                number += len(events)
                if not events:
                    await changed.wait()
        finally:
            self._num_watchers -= 1
            if not self._num_watchers:
                self._asyncio_loop = None

    def latest(self, limit: int) -> list[Event]:
        """The last `limit` events, or as many as the log has, the oldest first.

        On the engine's thread, between two steps. O(events returned).
        """
        log = self._log
        return log.since(max(log.oldest_sequence_number, log.next_sequence_number - limit))

    def close(self) -> None:
        """End all watches: the worker stops."""
        self._closed = True
        self._wake_all()

    async def _since(self, number: int) -> list[Event]:
        if self._closed:
            raise EngineStoppedError("the worker is shutting down; watch it again when it is back")
        return await self._engine_loop.call(lambda _: self._log.since(number, _MAX_EVENTS_AT_ONCE))

    def _note(self) -> None:
        """Something has changed; on the engine's thread. However often, watchers are woken once."""
        loop = self._asyncio_loop
        if loop is not None and not self._is_noted:
            self._is_noted = True
            loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        self._is_noted = False
        self._changed.set()
        self._changed = asyncio.Event()
