"""Ways in which a request can end early, on the bridge between asyncio and the engine's thread."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.hand_engine import GREEDY, HandEngine, reference, stream

from prefixcache import Namespace, QuotaExceededError, TenantQuota
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.engine.request import (
    AnswerEvent,
    Completion,
    Delta,
    FinishReason,
    Request,
    StopConditions,
)
from prefixcache_worker.engine.request_stream import ReaderLimits, RequestStream
from prefixcache_worker.errors import AbortedError, DeadlineExceededError, SlowReaderError


def request(
    name: str = "a",
    *,
    request_id: str = "r",
    num_prompt_tokens: int = 20,
    max_tokens: int = 5,
    n: int = 1,
    tenant: str = "t",
) -> Request:
    return Request(
        request_id=request_id,
        namespace=Namespace(model="tiny", tenant=tenant),
        prompt_token_ids=tuple(stream(name, num_prompt_tokens)),
        sampling=GREEDY,
        stop_conditions=StopConditions(max_tokens=max_tokens),
        num_choices=n,
    )


@asynccontextmanager
async def looped(hand: HandEngine | None = None, **settings: object) -> AsyncIterator[EngineLoop]:
    loop = EngineLoop((hand or HandEngine()).engine, **settings)  # type: ignore[arg-type]
    loop.start()
    try:
        async with asyncio.timeout(60):
            yield loop
            assert [len(loop._streams), len(loop._stream_by_name), len(loop._waiting_tokens)] == [0, 0, 0]
            await loop.call(lambda engine: engine.check())
            assert (await loop.call(lambda engine: engine.stats())).blocks.live == 0
            assert len(loop._deadlines) == 0
    finally:
        await loop.stop(drain_seconds=0)


class HandClock:
    """Seconds that pass when the test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


async def read(events: RequestStream, seen: list[AnswerEvent]) -> None:
    """Read to the end, keeping what came before a failure."""
    async with events:
        async for event in events:
            seen.append(event)  # noqa: PERF401 - a failure may interrupt it


async def tokens_of(events: RequestStream) -> list[int]:
    return [token for event in [e async for e in events][:-1] for token in event.token_ids]


async def test_b99_a_request_may_be_cancelled_at_any_moment():
    """Two hundred, after 0 to 20 turns of the event loop; some of them wait behind a pool that is full."""
    turns = random.Random(99)
    async with looped(HandEngine(num_blocks=6), max_live_requests=300) as loop:
        before = (await loop.call(lambda engine: engine.stats())).requests

        async def submit_and_leave(number: int) -> str:
            name = "abcde"[number % 5]
            async with loop.submit(request(name, request_id=str(number), max_tokens=2000)) as events:
                reading = asyncio.ensure_future(anext(aiter(events)))
                for _ in range(turns.randrange(21)):
                    await asyncio.sleep(0)
                reading.cancel()
            return "left"

        full = loop.submit(request("s", request_id="full", num_prompt_tokens=80, max_tokens=2000))
        await anext(aiter(full))
        behind = await asyncio.gather(*map(submit_and_leave, range(20)))
        async with full:
            pass
        others = [await submit_and_leave(number) for number in range(20, 200)]
        after = (await loop.call(lambda engine: engine.stats())).requests
    assert [*behind, *others] == ["left"] * 200
    assert (after.waiting, after.running, after.failed - before.failed) == (0, 0, 0)
    assert after.cancelled + after.finished - before.cancelled == 201


async def test_b100_leaving_a_request_of_four_choices_stops_them_all():
    async with looped() as loop:
        async with loop.submit(request(num_prompt_tokens=40, max_tokens=2000, n=4)) as events:
            num_read = 0
            async for _ in events:
                num_read += 1
                if num_read == 5:
                    break
        steps = (await loop.call(lambda engine: engine.stats())).requests.steps
        await asyncio.sleep(0)
        stats = await loop.call(lambda engine: engine.stats())
    assert (stats.requests.running, stats.requests.waiting, stats.blocks.live) == (0, 0, 0)
    assert stats.requests.steps == steps, "nothing runs on"


async def test_b100_choices_that_end_at_different_times_end_once_each():
    """A stop token that some choices draw early and others late or never."""
    hand = HandEngine()
    asked = Request(
        request_id="r",
        namespace=Namespace(model="tiny", tenant="t"),
        prompt_token_ids=tuple(stream("a", 40)),
        stop_conditions=StopConditions(max_tokens=40, stop_token_ids=tuple(range(0, 1000, 20))),
        num_choices=4,
    )
    async with looped(hand) as loop, loop.submit(asked) as events:
        seen = [event async for event in events]
    deltas = [event for event in seen if isinstance(event, Delta)]
    last = {delta.index: delta for delta in deltas}
    assert sorted(delta.index for delta in deltas if delta.finish_reason is not None) == [0, 1, 2, 3]
    assert all(delta.finish_reason in FinishReason for delta in last.values())
    assert [type(event) for event in seen].count(Completion) == 1
    assert seen[-1].usage.completion_tokens == sum(len(delta.token_ids) for delta in deltas)


async def test_b107_when_the_model_fails_at_the_fifth_token_the_stream_says_so():
    hand = HandEngine()
    forward, num_steps = hand.model.forward, 0

    class FailingModel:
        def __getattr__(self, name: str) -> object:
            return getattr(hand.model, name)

        def forward(self, *arguments: object) -> object:
            nonlocal num_steps
            num_steps += 1
            if num_steps == 5:
                raise RuntimeError("the fifth step")
            return forward(*arguments)

    async with looped(HandEngine(model=FailingModel())) as loop:  # type: ignore[arg-type]
        seen: list[AnswerEvent] = []
        with pytest.raises(RuntimeError, match="the fifth step"):
            await read(loop.submit(request(max_tokens=9)), seen)
        assert [type(event) for event in seen] == [Delta] * 4
        assert await tokens_of(loop.submit(request())) == reference(stream("a", 20), 5), "and it lives on"


async def test_b107_when_the_pool_ends_at_the_fifth_token_the_stream_says_so():
    """The tenant may have one block, and the fifth token needs another."""
    hand = HandEngine()
    hand.cache.set_quota("t", TenantQuota(ceiling_blocks=1))
    async with looped(hand) as loop:
        seen: list[AnswerEvent] = []
        with pytest.raises(QuotaExceededError):
            await read(loop.submit(request(num_prompt_tokens=12, max_tokens=9)), seen)
        assert [type(event) for event in seen] == [Delta] * 5


async def test_b108_a_request_whose_deadline_has_passed_is_refused_at_once():
    clock = HandClock()
    async with looped(clock=clock) as loop:
        with pytest.raises(DeadlineExceededError, match="before the request came"):
            loop.submit(request(), deadline=100.0)
        stats = await loop.call(lambda engine: engine.stats())
    assert stats.tokens.prompt == 0


async def test_b108_requests_whose_deadline_passes_while_they_wait_never_start():
    """Twenty behind a pool that one request fills; only its prompt is ever computed."""
    clock = HandClock()
    hand = HandEngine(num_blocks=6)
    async with looped(hand, clock=clock) as loop:
        async with loop.submit(request("s", request_id="full", num_prompt_tokens=80, max_tokens=16)) as full:
            await anext(aiter(full))
            waiting = [
                loop.submit(request("a", request_id=str(number), num_prompt_tokens=40), deadline=100.05)
                for number in range(20)
            ]
            await loop.call(lambda engine: None)
            clock.now += 0.05
            for events in waiting:
                with pytest.raises(DeadlineExceededError):
                    await tokens_of(events)
        stats = await loop.call(lambda engine: engine.stats())
    assert stats.tokens.prompt == 80
    assert stats.requests.cancelled + stats.requests.finished == 21


async def test_b108_a_running_request_is_dropped_before_the_step_after_its_deadline():
    clock = HandClock()
    async with looped(clock=clock) as loop:
        engine = await loop.call(lambda engine: engine)
        step = engine.step
        seconds = iter([0.0, 0.1, 0.05, 1.0])  # during each step

        def slow_step():
            outputs = step()
            clock.now += next(seconds)
            return outputs

        await loop.call(lambda engine: setattr(engine, "step", slow_step))
        seen: list[AnswerEvent] = []
        with pytest.raises(DeadlineExceededError, match="before the answer was complete"):
            await read(loop.submit(request(max_tokens=2000), deadline=100.2), seen)
    assert len(seen) == 4
    assert next(seconds, None) is None, "and no fifth step"


async def test_b108_a_paused_request_meets_its_deadline_although_nothing_is_stepped():
    async with looped(reader_limits=ReaderLimits(max_unread_tokens=2)) as loop:
        events = loop.submit(request(max_tokens=2000), deadline=loop._clock() + 0.2)
        while loop._streams:
            await asyncio.sleep(0)
        with pytest.raises(DeadlineExceededError):
            await tokens_of(events)


@pytest.mark.parametrize("deadline", [1e12, float("inf")])
async def test_a_deadline_that_never_comes_stops_nobody(deadline: float):
    async with looped(reader_limits=ReaderLimits(max_unread_tokens=2)) as loop:
        patient = loop.submit(request(max_tokens=9), deadline=deadline)
        while patient._stall is None:
            await asyncio.sleep(0)
        while not (loop._wake._waiters or loop.is_broken):  # all that runs is paused: the thread sleeps
            await asyncio.sleep(0)
        assert await tokens_of(patient) == reference(stream("a", 20), 9)


async def test_a_request_that_is_aborted_ends_with_that_and_frees_its_blocks():
    async with looped() as loop:
        events = loop.submit(request(max_tokens=2000))
        await anext(aiter(events))
        assert not loop.abort("another tenant", "r")
        assert not loop.abort("t", "another request")
        assert loop.abort("t", "r")
        assert not loop.abort("t", "r")
        with pytest.raises(AbortedError):
            await tokens_of(events)
        again = loop.submit(request())
        assert await tokens_of(again) == reference(stream("a", 20), 5), "the name is free again"


async def test_b69_aborting_one_lets_the_queued_one_start():
    async with looped(HandEngine(max_running=4)) as loop:
        running = [loop.submit(request("abcd"[i], request_id=str(i), max_tokens=4000)) for i in range(4)]
        queued = loop.submit(request("e", request_id="queued"))
        for events in running:
            await anext(aiter(events))
        assert not queued.take_ready()
        assert loop.abort("t", "2")
        assert await tokens_of(queued) == reference(stream("e", 20), 5)
        for i in (0, 1, 3):
            assert loop.abort("t", str(i))


async def test_b67_a_reader_that_stops_holds_a_bounded_number_of_tokens_and_nobody_up():
    """It stops in an answer of 300 tokens while seven others read theirs; then it reads on to the end."""
    limits = ReaderLimits(max_unread_tokens=32)
    async with looped(HandEngine(num_blocks=400), reader_limits=limits) as loop:
        slow = loop.submit(request("s", request_id="slow", max_tokens=300))
        others = [loop.submit(request("abcde"[i % 5], request_id=str(i), max_tokens=100)) for i in range(7)]
        for i, answer in enumerate(await asyncio.gather(*map(tokens_of, others))):
            assert answer == reference(stream("abcde"[i % 5], 20), 100)
        assert 32 <= slow._num_unread_tokens <= 32 + 8, "the cap, and the steps that were under way"
        assert await tokens_of(slow) == reference(stream("s", 20), 300), "complete and in order"


async def test_b67_a_reader_that_stands_still_is_ended_and_its_blocks_are_free():
    limits = ReaderLimits(max_unread_tokens=8, stall_seconds=0.0)
    async with looped(reader_limits=limits) as loop:
        slow = loop.submit(request("s", max_tokens=4000))
        while loop._streams:
            await asyncio.sleep(0)
        assert (await loop.call(lambda engine: engine.stats())).blocks.live == 0
        with pytest.raises(SlowReaderError):
            await tokens_of(slow)
