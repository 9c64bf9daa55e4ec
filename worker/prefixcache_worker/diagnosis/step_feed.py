"""Audited steps, for those who watch from outside the engine's thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from prefixcache_worker.diagnosis.step_audit import StepAudit
from prefixcache_worker.diagnosis.step_record import StepRecord
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.errors import AuditError, EngineStoppedError

MAX_UNREAD_STEPS = 4096
"""Records that wait for a slow reader; further ones are lost to it, and counted."""


class NumberedStep(NamedTuple):
    """A step as one watcher sees it."""

    number: int
    """From 1 on, the lost ones included."""
    num_lost: int
    """Directly before it."""
    record: StepRecord


class StepWatch:
    """What one watcher has not read yet. The engine's thread puts, the asyncio loop takes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_unread: int) -> None:
        self._loop = loop
        self._max_unread = max_unread
        self._unread: deque[NumberedStep] = deque()
        self._changed = asyncio.Event()
        self._num_steps = 0
        self._num_lost = 0
        self._error: Exception | None = None

    def put(self, record: StepRecord) -> None:
        """Never waits. On the engine's thread."""
        self._num_steps += 1
        if len(self._unread) >= self._max_unread:
            self._num_lost += 1
            return
        self._unread.append(NumberedStep(self._num_steps, self._num_lost, record))
        self._num_lost = 0
        self._loop.call_soon_threadsafe(self._changed.set)

    def end(self, error: Exception) -> None:
        """There will be no more, for this reason. On any thread."""
        self._error = error
        self._loop.call_soon_threadsafe(self._changed.set)

    async def next(self) -> NumberedStep:
        """The next step. Raises what `end` has said when there is none left."""
        while not self._unread:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        return self._unread.popleft()


class StepFeed:
    """Has the engine's steps audited as long as anybody watches, once for all who do.

    Use on the engine loop's asyncio loop.
    """

    def __init__(self, engine_loop: EngineLoop, *, max_unread: int = MAX_UNREAD_STEPS) -> None:
        self._engine_loop = engine_loop
        self._max_unread = max_unread
        self._watches: list[StepWatch] = []  # these two are the engine's thread's as long as there is one
        self._audit: StepAudit | None = None

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[StepWatch]:
        """The steps from now on. Raises EngineStoppedError."""
        watch = StepWatch(asyncio.get_running_loop(), self._max_unread)
        try:
            await self._engine_loop.call(lambda engine: self._add(engine, watch))
            yield watch
        finally:  # also for a caller that goes away before the engine has added it
            with suppress(EngineStoppedError):
                await self._engine_loop.call(lambda _: self._remove(watch))

    def close(self) -> None:
        """End all watches. Requires: the engine loop has stopped."""
        for watch in self._watches:
            watch.end(EngineStoppedError("the worker is shutting down; watch it again when it is back"))

    def _add(self, engine: Engine, watch: StepWatch) -> None:
        self._watches.append(watch)
        if self._audit is None:
            self._audit = StepAudit(engine, self._tell, fail=self._fail)
            self._audit.start()

    def _remove(self, watch: StepWatch) -> None:
        if watch in self._watches:
            self._watches.remove(watch)
        if not self._watches and self._audit is not None:
            self._audit.stop()
            self._audit = None

    def _tell(self, record: StepRecord) -> None:
        for watch in self._watches:
            watch.put(record)

    def _fail(self) -> None:
        self._audit = None
        for watch in self._watches:
            watch.end(AuditError("the audit of steps broke, see the worker's log; report it"))
