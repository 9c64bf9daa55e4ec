"""What waits for a reader is bounded: a slow one pauses its request, one that stands still ends it."""

from __future__ import annotations

import asyncio

import pytest
from support.hand_engine import stream

from prefixcache import Namespace
from prefixcache_worker.engine.request import (
    Completion,
    Delta,
    Failure,
    FinishReason,
    PromptLogprobs,
    Request,
    Timing,
    TokenLogprobs,
    Usage,
)
from prefixcache_worker.engine.request_stream import ReaderLimits, RequestStream, merge_deltas
from prefixcache_worker.errors import AbortedError, SlowReaderError

END = Completion(
    request_id="r",
    usage=Usage(prompt_tokens=1, cached_tokens=0, computed_tokens=1, completion_tokens=9),
    timing=Timing(queue_seconds=0.0, first_token_seconds=0.0, total_seconds=0.0),
)


class Clock:
    """The event loop's clock, moved by hand."""

    def __init__(self, now: float) -> None:
        self.now = now

    async def advance(self, seconds: float) -> None:
        self.now += seconds
        for _ in range(3):  # turns: one starts what is due, and that may start something
            await asyncio.sleep(0)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    loop = asyncio.get_running_loop()
    clock = Clock(loop.time())
    monkeypatch.setattr(loop, "time", lambda: clock.now)
    return clock


class HandStream:
    """A stream fed by hand, and what it asked of the engine."""

    def __init__(self, *, max_unread_tokens: int = 4, stall_seconds: float = 3600.0) -> None:
        self.pauses: list[bool] = []
        self.num_cancels = 0
        request = Request(
            request_id="r", namespace=Namespace(model="m", tenant="t"), prompt_token_ids=tuple(stream("a", 1))
        )
        self.stream = RequestStream(
            1,
            request,
            ReaderLimits(max_unread_tokens=max_unread_tokens, stall_seconds=stall_seconds),
            cancel=self._cancel,
            set_paused=lambda _, is_paused: self.pauses.append(is_paused),
        )

    def _cancel(self, _: RequestStream) -> None:
        self.num_cancels += 1

    def put(self, *token_ids: int) -> None:
        for token_id in token_ids:
            self.stream.put(Delta(0, "", (token_id,)))

    async def rest(self) -> list[int | Completion]:
        return [event if isinstance(event, Completion) else event.token_ids[0] async for event in self.stream]


async def test_at_the_cap_the_request_is_paused_and_at_half_of_it_it_goes_on():
    hand = HandStream(max_unread_tokens=4)
    hand.put(1, 2, 3)
    assert hand.pauses == []
    hand.put(4)
    hand.put(5)  # of the step that was under way
    assert hand.pauses == [True]
    reader = aiter(hand.stream)
    assert [(await anext(reader)).token_ids[0] for _ in range(2)] == [1, 2]
    assert hand.pauses == [True]
    assert (await anext(reader)).token_ids == (3,)
    assert hand.pauses == [True, False]
    hand.put(6, 7)
    assert hand.pauses == [True, False, True], "it may be paused again"
    hand.stream.put(END)
    assert await hand.rest() == [4, 5, 6, 7, END]


async def test_taking_all_that_is_ready_lets_a_paused_request_go_on():
    hand = HandStream(max_unread_tokens=2)
    hand.put(1, 2)
    assert [event.token_ids for event in hand.stream.take_ready()] == [(1,), (2,)]
    assert hand.pauses == [True, False]


async def test_scored_prompt_tokens_are_unread_tokens_too():
    hand = HandStream(max_unread_tokens=4)
    hand.stream.put(PromptLogprobs((None, *[TokenLogprobs(0.0)] * 3)))
    assert hand.pauses == [True]


async def test_a_reader_that_stands_still_at_the_cap_is_ended_with_the_numbers(clock: Clock):
    hand = HandStream(max_unread_tokens=2, stall_seconds=30)
    hand.put(1, 2)
    await clock.advance(29.9)
    assert hand.num_cancels == 0
    await clock.advance(0.2)
    assert hand.num_cancels == 1
    assert hand.stream.take_ready() == []
    with pytest.raises(SlowReaderError, match=r"^2 tokens are unread, and none was read for 30 seconds"):
        await hand.rest()


async def test_reading_anything_starts_the_time_anew(clock: Clock):
    hand = HandStream(max_unread_tokens=10, stall_seconds=30)
    hand.put(*range(10))
    reader = aiter(hand.stream)
    for _ in range(4):
        await clock.advance(29)
        await anext(reader)
    assert (hand.num_cancels, hand.pauses) == (0, [True])
    await clock.advance(31)
    assert hand.num_cancels == 1


async def test_below_the_cap_a_reader_may_take_its_time(clock: Clock):
    hand = HandStream(max_unread_tokens=2, stall_seconds=30)
    hand.put(1)
    await clock.advance(1000)
    assert (hand.num_cancels, hand.pauses) == (0, [])


@pytest.mark.parametrize("ending", [END, Failure(AbortedError("ended"))])
async def test_what_has_ended_is_never_too_slow(ending: Completion | Failure, clock: Clock):
    hand = HandStream(max_unread_tokens=2, stall_seconds=30)
    hand.put(1, 2)
    hand.stream.put(ending)
    await clock.advance(1000)
    assert hand.num_cancels == 0
    if ending is END:
        assert await hand.rest() == [1, 2, END]
    else:
        with pytest.raises(AbortedError):
            await hand.rest()


async def test_a_stream_that_is_left_while_paused_has_no_clock_left(clock: Clock):
    hand = HandStream(max_unread_tokens=2, stall_seconds=30)
    async with hand.stream:
        hand.put(1, 2)
    await clock.advance(1000)
    assert hand.num_cancels == 1, "by leaving, and not again by the clock"


def test_merged_deltas_lose_nothing_and_keep_their_order():
    scores = [TokenLogprobs(-float(i)) for i in range(5)]
    prompt = [PromptLogprobs((None, scores[0])), PromptLogprobs((scores[1],))]
    events = [
        *prompt,
        Delta(1, "a", (1,), logprobs=(scores[1],)),
        Delta(0, "x", (9,)),
        Delta(1, "", (2,), logprobs=(scores[2],)),
        Delta(1, "bc", (3, 4), FinishReason.STOP, 4, (scores[3], scores[4])),
        END,
    ]
    assert merge_deltas(events) == [
        *prompt,
        Delta(1, "abc", (1, 2, 3, 4), FinishReason.STOP, 4, tuple(scores[1:])),
        Delta(0, "x", (9,)),
        END,
    ]
    assert merge_deltas(events[:3]) == events[:3]
