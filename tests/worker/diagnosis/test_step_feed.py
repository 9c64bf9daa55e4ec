"""Steps reach those who watch, at the pace of each, and nobody watches when they have gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.hand_engine import GREEDY, HandEngine, stream

from prefixcache import Namespace
from prefixcache_worker.diagnosis.step_feed import StepFeed, StepWatch
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.engine.request import Request, StopConditions
from prefixcache_worker.errors import AuditError, EngineStoppedError


@asynccontextmanager
async def running(hand: HandEngine, *, max_unread: int = 100) -> AsyncIterator[tuple[EngineLoop, StepFeed]]:
    loop = EngineLoop(hand.engine)
    feed = StepFeed(loop, max_unread=max_unread)
    loop.start()
    try:
        yield loop, feed
    finally:
        await loop.stop(drain_seconds=0)
        feed.close()


async def answer(loop: EngineLoop, name: str, num_tokens: int) -> None:
    """Send a prompt, and read its answer to the end."""
    request = Request(
        request_id=name,
        namespace=Namespace(model="tiny", tenant="t"),
        prompt_token_ids=tuple(stream(name, 20)),
        sampling=GREEDY,
        stop_conditions=StopConditions(max_tokens=num_tokens),
    )
    async with loop.submit(request) as events:
        async for _ in events:
            pass


async def numbers(watch: StepWatch, count: int) -> list[tuple[int, int]]:
    steps = [await watch.next() for _ in range(count)]
    return [(step.number, step.num_lost) for step in steps]


async def test_every_watcher_gets_every_step_from_when_it_came() -> None:
    hand = HandEngine()
    async with running(hand) as (loop, feed), feed.watch() as early:
        await answer(loop, "a", 3)
        async with feed.watch() as late:
            await answer(loop, "b", 2)
            assert await numbers(late, 2) == [(1, 0), (2, 0)]
        assert await numbers(early, 5) == [(i, 0) for i in range(1, 6)]


async def test_a_slow_reader_is_told_what_it_has_lost() -> None:
    hand = HandEngine()
    async with running(hand, max_unread=2) as (loop, feed), feed.watch() as watch:
        await answer(loop, "a", 6)
        assert await numbers(watch, 2) == [(1, 0), (2, 0)]
        await answer(loop, "b", 1)
        assert await numbers(watch, 1) == [(7, 4)]


async def test_nobody_listens_when_the_last_watcher_has_gone() -> None:
    hand = HandEngine()
    async with running(hand) as (loop, feed):
        async with feed.watch(), feed.watch():
            assert hand.store.listener is not None
        assert hand.store.listener is None
        async with feed.watch() as again:
            await answer(loop, "a", 1)
            assert await numbers(again, 1) == [(1, 0)]


async def test_a_stop_ends_the_watch_and_no_new_one_begins() -> None:
    hand = HandEngine()
    async with running(hand) as (loop, feed):
        watched = asyncio.Event()

        async def watch() -> None:
            async with feed.watch() as steps:
                watched.set()
                await steps.next()

        task = asyncio.create_task(watch())
        await watched.wait()
        await loop.stop(drain_seconds=0)
        feed.close()
        with pytest.raises(EngineStoppedError):
            await task
        with pytest.raises(EngineStoppedError):
            await watch()


async def test_an_audit_that_breaks_ends_the_watch_and_the_next_one_has_another() -> None:
    hand = HandEngine()
    async with running(hand) as (loop, feed), feed.watch() as watch:
        assert feed._audit is not None
        feed._audit.computed = lambda: 1 / 0  # type: ignore[method-assign]
        await answer(loop, "a", 2)
        with pytest.raises(AuditError):
            await watch.next()
        async with feed.watch() as another:
            await answer(loop, "b", 1)
            assert await numbers(another, 1) == [(1, 0)]


async def test_nobody_is_left_who_went_away_before_the_engine_knew_of_them() -> None:
    """A step may take long, and a caller may be gone when it ends."""
    hand = HandEngine()
    is_busy, may_go_on = threading.Event(), threading.Event()

    def long_step(_: Engine) -> None:
        is_busy.set()
        assert may_go_on.wait(30)

    async with running(hand) as (loop, feed):
        busy = asyncio.create_task(loop.call(long_step))
        await asyncio.to_thread(is_busy.wait, 30)
        asked = asyncio.create_task(feed.watch().__aenter__())
        await asyncio.sleep(0)
        asked.cancel()
        may_go_on.set()
        await busy
        with pytest.raises(asyncio.CancelledError):
            await asked
        await loop.call(lambda engine: None)
        assert hand.store.listener is None
