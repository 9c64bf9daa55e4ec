"""When snapshots are taken, by a keeper over snapshots that a test ends by hand."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.served_worker import DEADLINE_SECONDS

from prefixcache.snapshot import SavedSnapshot
from prefixcache_worker.errors import EngineStoppedError, SnapshotFailedError
from prefixcache_worker.snapshots.pace import Pace
from prefixcache_worker.snapshots.snapshot_keeper import SnapshotKeeper


class HandSnapshots:
    """Every save waits for its permit, and then is as the pace or `error` says."""

    is_engine_busy = False

    def __init__(self) -> None:
        self.is_changed = True
        self.error: Exception | None = None
        self.permits = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.num_begun = self.num_ended = self.num_running = self.most_running = 0
        self.is_open = True
        self.folder = self

    def begin(self) -> Any:
        self.num_begun += 1
        return self

    @property
    def running(self) -> HandSnapshots:
        return self

    def end(self) -> None:
        self.num_ended += 1

    def close(self) -> None:
        self.is_open = False

    def write(self, save: object, pace: Pace) -> SavedSnapshot:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        self.begun.release()
        assert self.permits.acquire(timeout=DEADLINE_SECONDS)
        self.num_running -= 1
        pace()
        if self.error is not None:
            raise self.error
        self.is_changed = False
        return SavedSnapshot(3, 192)

    async def begin_write(self) -> None:
        """Return when one more save is being written."""
        assert await asyncio.to_thread(self.begun.acquire, timeout=DEADLINE_SECONDS)


class HandLoop:
    """An engine loop whose engine is always between two steps, until it has stopped."""

    is_stopped = False
    num_calls = 0

    async def call(self, function: Callable[[Any], Any]) -> Any:
        self.num_calls += 1
        if self.is_stopped:
            raise EngineStoppedError("the worker has stopped; ask another one")
        return function(None)


@pytest.fixture
def snapshots() -> HandSnapshots:
    return HandSnapshots()


def keeper_of(
    snapshots: HandSnapshots, loop: HandLoop | None = None, *, interval: float = 1e6, stop: float = 1e6
) -> SnapshotKeeper:
    return SnapshotKeeper(
        snapshots,  # type: ignore[arg-type]
        loop or HandLoop(),  # type: ignore[arg-type]
        interval_seconds=interval,
        stop_seconds=stop,
    )


async def test_the_clock_saves_what_has_changed_and_nothing_else(snapshots: HandSnapshots):
    loop = HandLoop()
    keeper = keeper_of(snapshots, loop, interval=1e-4)
    keeper.start()
    await snapshots.begin_write()
    snapshots.permits.release()
    async with asyncio.timeout(DEADLINE_SECONDS):
        while loop.num_calls < 20:  # it looks again and again
            await asyncio.sleep(0)
    assert snapshots.num_begun == snapshots.num_ended == 1
    snapshots.is_changed = True
    await snapshots.begin_write()
    snapshots.permits.release()
    await keeper.stop()
    assert snapshots.num_begun == 2


async def test_a_save_that_breaks_is_logged_and_the_clock_goes_on(
    snapshots: HandSnapshots, caplog: pytest.LogCaptureFixture
):
    keeper = keeper_of(snapshots, interval=1e-4)
    snapshots.error = AssertionError("a bug")
    keeper.start()
    for _ in range(2):
        await snapshots.begin_write()
        snapshots.permits.release()
    await snapshots.begin_write()
    snapshots.error = None
    snapshots.permits.release()
    await keeper.stop()
    assert caplog.text.count("AssertionError: a bug") == 2


async def test_one_save_at_a_time(snapshots: HandSnapshots):
    keeper = keeper_of(snapshots)
    saves = [asyncio.create_task(keeper.save()) for _ in range(3)]
    for _ in saves:
        await snapshots.begin_write()
        snapshots.permits.release()
    reports = await asyncio.gather(*saves)
    assert [report[:2] for report in reports] == [(3, 192)] * 3
    assert (snapshots.num_begun, snapshots.num_ended, snapshots.most_running) == (3, 3, 1)


async def test_a_save_goes_on_when_its_caller_has_gone(snapshots: HandSnapshots):
    keeper = keeper_of(snapshots)
    caller = asyncio.create_task(keeper.save())
    await snapshots.begin_write()
    caller.cancel()
    snapshots.permits.release()
    with pytest.raises(asyncio.CancelledError):
        await caller
    snapshots.permits.release()
    await keeper.save()
    assert snapshots.num_ended == 2


async def test_failures_are_warned_of_once_until_it_works_again(
    snapshots: HandSnapshots, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "prefixcache_worker.snapshots")
    keeper = keeper_of(snapshots)
    for error in (SnapshotFailedError("no"), SnapshotFailedError("no"), None, None):
        snapshots.error = error
        snapshots.permits.release()
        if error is None:
            await keeper.save()
        else:
            with pytest.raises(SnapshotFailedError, match="no"):
                await keeper.save()
    assert [record.getMessage() for record in caplog.records] == [
        "no; the one before stays, and the next is tried as usual",
        "snapshots are saved again",
    ]
    assert snapshots.num_ended == 4


async def test_the_end_saves_once_more_and_lets_go_of_the_folder(snapshots: HandSnapshots):
    loop = HandLoop()
    keeper = keeper_of(snapshots, loop)
    loop.is_stopped = True
    snapshots.permits.release()
    await keeper.stop()
    assert (snapshots.num_begun, snapshots.is_changed, snapshots.is_open) == (1, False, False)
    with pytest.raises(EngineStoppedError):
        await keeper.save()


async def test_nothing_new_is_not_saved_at_the_end(snapshots: HandSnapshots):
    snapshots.is_changed = False
    await keeper_of(snapshots).stop()
    assert (snapshots.num_begun, snapshots.is_open) == (0, False)


async def test_without_time_at_the_end_the_save_is_given_up(
    snapshots: HandSnapshots, caplog: pytest.LogCaptureFixture
):
    """One that runs already, which fails for its caller, and the last one."""
    keeper = keeper_of(snapshots, stop=0)
    caller = asyncio.create_task(keeper.save())
    await snapshots.begin_write()
    stopped = asyncio.create_task(keeper.stop())
    await asyncio.sleep(0)  # it waits for the save that runs
    for _ in range(2):
        snapshots.permits.release()
    await stopped
    with pytest.raises(SnapshotFailedError, match="shut down before the snapshot was complete"):
        await caller
    assert snapshots.is_changed
    assert not snapshots.is_open
    assert "no time to save the cache; the snapshot before stays" in caplog.text
