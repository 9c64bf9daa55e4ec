"""The bridge between asyncio and the engine's thread."""

from __future__ import annotations

import asyncio
import threading

import pytest
from support.hand_engine import GREEDY, HandEngine, reference, stream

from prefixcache import Namespace
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.engine.request import Completion, Delta, Request, StopConditions
from prefixcache_worker.errors import DuplicateRequestError, EngineStoppedError, QueueFullError


def request(name: str, *, request_id: str = "r", max_tokens: int = 5, tenant: str = "t") -> Request:
    return Request(
        request_id=request_id,
        namespace=Namespace(model="tiny", tenant=tenant),
        prompt_token_ids=tuple(stream(name, 20)),
        sampling=GREEDY,
        stop_conditions=StopConditions(max_tokens=max_tokens),
    )


@pytest.fixture
async def loop():
    loop = EngineLoop(HandEngine().engine, max_live_requests=4)
    loop.start()
    yield loop
    await loop.stop(drain_seconds=0)


async def test_events_arrive_in_order_and_end_with_one_completion(loop):
    async with loop.submit(request("a")) as events:
        seen = [event async for event in events]
    assert [type(event) for event in seen] == [Delta] * 5 + [Completion]
    assert [token for delta in seen[:-1] for token in delta.token_ids] == reference(stream("a", 20), 5)


async def test_leaving_the_stream_gives_everything_back(loop):
    async with loop.submit(request("a", max_tokens=4000)) as events:
        async for _ in events:
            break
    stats = await loop.call(lambda engine: engine.stats())
    assert (stats.blocks.live, stats.requests.running, stats.requests.cancelled) == (0, 0, 1)


async def test_b65_an_id_is_free_again_as_soon_as_its_stream_is_left(loop):
    """Start and abandon the same id many times; the last always finishes."""
    for _ in range(50):
        async with loop.submit(request("a", max_tokens=4000)):
            with pytest.raises(DuplicateRequestError, match="'r'"):
                loop.submit(request("b"))
    async with loop.submit(request("a")) as events:
        assert isinstance([event async for event in events][-1], Completion)
    await loop.call(lambda engine: engine.check())


async def test_b65_a_stream_that_is_left_late_does_not_touch_the_next_one_of_its_id(loop):
    """The first is complete, its reader is slow to leave, and the client uses the id again."""
    async with loop.submit(request("a")) as old:
        await anext(event async for event in old if isinstance(event, Completion))
        new = loop.submit(request("b"))
    seen = [event async for event in new]
    assert [token for delta in seen[:-1] for token in delta.token_ids] == reference(stream("b", 20), 5)


async def test_b65_events_of_a_cancelled_request_do_not_reach_the_next_one_of_its_id(loop):
    """The first is cancelled while its step runs, and the id is used again before the step ends."""
    engine = await loop.call(lambda engine: engine)
    step, in_step, go_on = engine.step, threading.Event(), threading.Event()

    def held_step():
        outputs = step()
        in_step.set()
        go_on.wait(30)
        return outputs

    await loop.call(lambda engine: setattr(engine, "step", held_step))
    async with loop.submit(request("a", max_tokens=4000)):
        await asyncio.to_thread(in_step.wait, 30)
    new = loop.submit(request("b", tenant="t"))
    go_on.set()
    seen = [event async for event in new]
    assert [token for delta in seen[:-1] for token in delta.token_ids] == reference(stream("b", 20), 5)


async def test_two_tenants_may_choose_the_same_id(loop):
    streams = [loop.submit(request(name, tenant=name)) for name in "ab"]
    for name, events in zip("ab", streams, strict=True):
        seen = [event async for event in events]
        assert [token for delta in seen[:-1] for token in delta.token_ids] == reference(stream(name, 20), 5)


async def test_a_full_queue_refuses_and_loses_nobody(loop):
    streams = [loop.submit(request("a", request_id=str(i))) for i in range(4)]
    with pytest.raises(QueueFullError, match="4 requests"):
        loop.submit(request("b", request_id="one too many"))
    for events in streams:
        assert isinstance([event async for event in events][-1], Completion)


async def test_after_stop_nothing_is_taken_and_nothing_hangs():
    loop = EngineLoop(HandEngine().engine)
    loop.start()
    running = loop.submit(request("a", max_tokens=4000))
    await loop.stop(drain_seconds=0)
    with pytest.raises(EngineStoppedError):
        [event async for event in running]
    with pytest.raises(EngineStoppedError):
        loop.submit(request("b"))
    with pytest.raises(EngineStoppedError):
        await loop.call(lambda engine: engine.stats())


async def test_a_broken_command_raises_where_it_was_called(loop):
    with pytest.raises(ZeroDivisionError):
        await loop.call(lambda engine: 1 // 0)
    async with asyncio.timeout(30), loop.submit(request("a")) as events:
        assert isinstance([event async for event in events][-1], Completion)


async def test_an_engine_that_breaks_fails_its_requests_and_lives_on(loop, caplog):
    engine = await loop.call(lambda engine: engine)
    step = engine.step

    def broken_step():
        engine.step = step
        raise AssertionError("a bug of ours")

    await loop.call(lambda engine: setattr(engine, "step", broken_step))
    with pytest.raises(AssertionError, match="a bug of ours"):
        async with loop.submit(request("a")) as events:
            [event async for event in events]
    async with loop.submit(request("a")) as events:
        assert isinstance([event async for event in events][-1], Completion)
    assert "broke" in caplog.text


async def test_an_engine_that_cannot_even_give_up_ends_everybody_and_says_so(loop):
    def broken(*_):
        raise AssertionError("a bug of ours")

    await loop.call(lambda engine: setattr(engine, "step", broken))
    await loop.call(lambda engine: setattr(engine, "fail_all", broken))
    with pytest.raises(EngineStoppedError, match="broke"):
        async with loop.submit(request("a")) as events:
            [event async for event in events]
    async with asyncio.timeout(30):
        await loop.wait_broken()
    with pytest.raises(EngineStoppedError):
        loop.submit(request("b"))
    with pytest.raises(EngineStoppedError):
        await loop.call(lambda engine: engine.stats())
