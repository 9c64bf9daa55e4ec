"""When snapshots are taken: by the clock, when somebody asks, and at the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from math import inf
from typing import NamedTuple

from prefixcache.snapshot import SavedSnapshot
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.errors import EngineStoppedError, SnapshotFailedError
from prefixcache_worker.snapshots.cache_snapshots import BegunSave, CacheSnapshots
from prefixcache_worker.snapshots.pace import Pace, SaveAbandonedError

logger = logging.getLogger(__name__)


class SaveReport(NamedTuple):
    """What a save has written."""

    num_blocks: int
    num_bytes: int
    """Of the file."""
    seconds: float


class SnapshotKeeper:
    """Saves beside a running engine, one save at a time. Lives on the engine loop's asyncio loop.

    A save that fails changes nothing: the snapshot before is still there, and the service goes on.
    """

    def __init__(
        self,
        snapshots: CacheSnapshots,
        engine_loop: EngineLoop,
        *,
        interval_seconds: float,
        stop_seconds: float,
    ) -> None:
        """Saves every `interval_seconds` if anything has changed; `stop_seconds` are for the last save."""
        self._snapshots = snapshots
        self._engine_loop = engine_loop
        self._interval_seconds = interval_seconds
        self._stop_seconds = stop_seconds
        self._one_at_a_time = asyncio.Lock()
        self._pace: Pace | None = None
        """Of the save that runs."""
        self._deadline = inf
        """No save goes on after this moment of the monotonic clock."""
        self._timer: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._is_failing = False

    def start(self) -> None:
        """Save from time to time from now on. Requires a running asyncio loop."""
        self._timer = asyncio.create_task(self._save_from_time_to_time())

    async def save(self) -> SaveReport:
        """Save now, or as soon as the save that runs has ended. Goes on when its caller is cancelled.

        Raises SnapshotFailedError, or EngineStoppedError.
        """
        return await asyncio.shield(self._save())

    async def restore(self) -> int:
        """Fill the empty cache, and return how many blocks it has now. No step runs meanwhile.

        Raises CacheNotEmptyError, SnapshotFailedError, or EngineStoppedError. O(bytes).
        """
        async with self._one_at_a_time:
            return await self._engine_loop.call(lambda _: self._snapshots.restore())

    async def stop(self) -> None:
        """Save what has changed, as far as there is time, and let go of the folder.

        Requires: the engine loop has stopped, and not because it broke.
        """
        self._is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self.hurry(self._stop_seconds)
        try:
            async with self._one_at_a_time:
                if self._snapshots.is_changed:
                    report = await self._write(self._snapshots.begin())
                    logger.info("saved %d blocks, %d bytes, in %.1f s", *report)
        except SnapshotFailedError:
            pass  # it is in the log
        finally:
            self._snapshots.folder.close()

    def hurry(self, seconds: float) -> None:
        """Save as fast as it goes, and give up what is not written within so many seconds."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)
        if self._pace is not None:
            self._pace.hurry(self._deadline)

    async def _save_from_time_to_time(self) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)
            try:
                if await self._engine_loop.call(lambda _: self._snapshots.is_changed):
                    await self.save()
            except SnapshotFailedError:
                pass  # it is in the log
            except EngineStoppedError:
                return
            except Exception:
                logger.exception("a save broke; the snapshot before stays, and the next is tried as usual")

    async def _save(self) -> SaveReport:
        async with self._one_at_a_time:
            if self._is_stopping:
                raise EngineStoppedError("the worker is shutting down, and saves by itself")
            begun = await self._engine_loop.call(lambda _: self._snapshots.begin())
            try:
                return await self._write(begun)
            finally:
                with contextlib.suppress(EngineStoppedError):  # nothing becomes free any more then
                    await self._engine_loop.call(lambda _: begun.running.end())

    async def _write(self, begun: BegunSave) -> SaveReport:
        started = time.monotonic()
        self._pace = Pace(lambda: self._snapshots.is_engine_busy)
        if self._deadline < inf:
            self._pace.hurry(self._deadline)
        try:
            saved: SavedSnapshot = await asyncio.to_thread(self._snapshots.write, begun, self._pace)
        except SnapshotFailedError as error:
            if not self._is_failing:
                logger.warning("%s; the one before stays, and the next is tried as usual", error)
            self._is_failing = True
            raise
        except SaveAbandonedError as error:
            logger.warning("no time to save the cache; the snapshot before stays")
            raise SnapshotFailedError("the worker shut down before the snapshot was complete") from error
        finally:
            self._pace = None
        if self._is_failing:
            logger.info("snapshots are saved again")
        self._is_failing = False
        return SaveReport(saved.num_blocks, saved.num_bytes, time.monotonic() - started)
