"""Sends a workload at a target and measures what comes of it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime

from prefixcache_client.cache_answers import Stats
from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.load.arrivals import Arrivals, Tally
from prefixcache_client.load.live_session import LiveSession
from prefixcache_client.load.measurement import Measurement, RequestResult
from prefixcache_client.load.schedule import Schedule
from prefixcache_client.load.session import Session, Workload
from prefixcache_client.load.target import Answered, Refused, Target
from prefixcache_client.messages import Prompt

CLIENT_OVERLOAD = "CLIENT_OVERLOAD"
"""The code of a request that was due when too many others were in flight, and was not sent."""
MAX_IN_FLIGHT = 10_000
_NUM_SENT_AT_ONCE = 32
"""Between so many sends, answers are read: else a long queue of late sends would hold them up."""

_NO_ANSWER = Answered(
    first_token=None,
    token_gaps=(),
    text="",
    token_ids=(),
    prompt_tokens=0,
    cached_tokens=None,
    output_tokens=0,
)


class Runner:
    """One load, sent once.

    One task sends whatever is due, in the order of the planned moments, and never waits for an answer: a
    server that is slow is sent as much as one that is fast, and latencies count from the planned moment
    (else the requests that a slow server delayed would be left out: coordinated omission). What is sent
    late, because this program has no time, is late by its `RequestResult.late_seconds`; what is due while
    `max_in_flight` requests wait for their answers is not sent, and fails with CLIENT_OVERLOAD.

    A session ends with its first turn that is not answered.
    """

    def __init__(
        self,
        workload: Workload,
        target: Target,
        arrivals: Arrivals,
        *,
        duration_seconds: float | None = None,
        max_requests: int | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
        on_result: Callable[[RequestResult], None] = lambda result: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Only what is planned before `duration_seconds` is sent, and not more than `max_requests`.

        `on_result` is called once for each request, when it has ended. `clock` is the one whose readings
        the target's answers have.
        """
        self._workload = workload
        self._target = target
        self._arrivals = arrivals
        self._tally = Tally()
        self._schedule = Schedule(
            arrivals,
            workload.sessions(),
            self._tally,
            end_seconds=math.inf if duration_seconds is None else duration_seconds,
        )
        self._max_requests = max_requests
        self._max_in_flight = max_in_flight
        self._on_result = on_result
        self._clock = clock
        self._start = 0.0
        self._num_planned = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None
        self._was_interrupted = False
        self.refusals: dict[str, str] = {}
        """The first sentence that came with each code, in the order of their coming."""
        self._sleep: asyncio.Future[None] | None = None

    def interrupt(self) -> None:
        """Send nothing more; `run` returns when what is in flight has ended. Call it from the event loop."""
        self._was_interrupted = True
        self._wake()

    async def run(self) -> Measurement:
        """Warm up, send everything, wait for the last answer, and tell what came of it.

        Cancelling it cancels what is in flight. Raises PrefixCacheClientError when the warm-up is refused
        or the workload cannot go on with this target.
        """
        description = await self._target.describe()
        await self._warm_up()
        stats_before = await self._target.stats()
        while self._schedule.work_ahead():
            await asyncio.sleep(0)
        began = datetime.now(UTC)
        self._start = self._clock()
        try:
            await self._send_all()
            while self._tally.planned_in_flight and self._failure is None:
                await self._sleep_until(math.inf)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._failure is not None:
            raise self._failure
        results = sorted(self._tally.results, key=lambda result: (result.sent, result.session, result.turn))
        first = min((result.planned for result in results), default=0.0)
        return Measurement(
            workload=self._workload.description,
            arrivals=self._arrivals.description,
            target=description,
            began=began.isoformat(timespec="seconds"),
            seconds=max((result.ended for result in results), default=first) - first,
            results=tuple(results),
            num_planned=self._max_requests if self._was_interrupted else self._num_planned,
            was_interrupted=self._was_interrupted,
            stats_before=stats_before,
            stats_after=await self._stats_after(),
        )

    async def _warm_up(self) -> None:
        for number, session in enumerate(self._workload.warm_up()):
            live = LiveSession(session, number)
            while (turn := live.next_turn) is not None:
                if self._was_interrupted:
                    return
                try:
                    live.answered(await self._send(live.session, live.next_prompt(), turn.max_tokens))
                except Refused as refused:
                    raise PrefixCacheClientError(
                        f"a request that only warms up was refused ({refused.code}): {refused}"
                    ) from None

    async def _stats_after(self) -> Stats | None:
        try:
            return await self._target.stats()
        except PrefixCacheClientError:  # it has gone: what was measured until then counts all the same
            return None

    async def _send_all(self) -> None:
        """Send every turn at its time, until there are no more or no more may be sent."""
        num_in_a_row = 0
        while not self._was_interrupted and self._failure is None and self._num_planned != self._max_requests:
            self._tally.now = self._now()
            moment = self._schedule.next_moment()
            if moment == math.inf and not self._tally.num_live_sessions:
                return  # nothing is due, and nobody is left who could plan a turn
            if moment > self._tally.now:
                num_in_a_row = 0
                # To make a session may take long: look at the clock, and at answers, after each.
                await (asyncio.sleep(0) if self._schedule.work_ahead() else self._sleep_until(moment))
                continue
            self._start_turn(self._schedule.pop(), moment)
            num_in_a_row += 1
            if num_in_a_row % _NUM_SENT_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _start_turn(self, live: LiveSession, planned: float) -> None:
        key = self._num_planned
        self._num_planned += 1
        if live.num_sent == 0:
            self._tally.num_live_sessions += 1
        if len(self._tally.planned_in_flight) >= self._max_in_flight:
            refused = Refused(CLIENT_OVERLOAD, f"{self._max_in_flight:,} requests were in flight already")
            self._end_turn(live, key, self._result(live, live.num_sent, planned, self._now(), refused))
            return
        self._tally.planned_in_flight[key] = planned
        task = asyncio.create_task(self._turn(live, key, planned))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _turn(self, live: LiveSession, key: int, planned: float) -> None:
        turn, number = live.next_turn, live.num_sent
        assert turn is not None
        try:
            prompt = live.next_prompt()
            sent = self._now()
            outcome: Answered | Refused
            try:
                outcome = await self._send(live.session, prompt, turn.max_tokens)
                live.answered(outcome)
            except Refused as refused:
                outcome = refused
            self._end_turn(live, key, self._result(live, number, planned, sent, outcome))
        except Exception as failure:  # no answer, but our own mistake or the workload's: it ends the load
            self._failure = self._failure or failure
            self._wake()

    def _result(
        self, live: LiveSession, turn: int, planned: float, sent: float, outcome: Answered | Refused
    ) -> RequestResult:
        """What is told of a request that has ended just now."""
        error = None
        if isinstance(outcome, Refused):
            self.refusals.setdefault(outcome.code, str(outcome))
            error = outcome.code
            outcome = _NO_ANSWER
        return RequestResult(
            session=live.number,
            turn=turn,
            tenant=live.session.tenant,
            planned=planned,
            sent=sent,
            first_token=None if outcome.first_token is None else outcome.first_token - self._start,
            ended=self._now(),
            token_gaps=outcome.token_gaps,
            prompt_tokens=outcome.prompt_tokens,
            cached_tokens=outcome.cached_tokens,
            output_tokens=outcome.output_tokens,
            error=error,
        )

    def _end_turn(self, live: LiveSession, key: int, result: RequestResult) -> None:
        """Note what came of a turn, and plan the next one of its session."""
        self._tally.planned_in_flight.pop(key, None)
        self._tally.results.append(result)
        turn = live.next_turn
        if (
            result.error is not None
            or turn is None
            or not self._schedule.push(result.ended + turn.think_seconds, live)
        ):
            self._tally.num_live_sessions -= 1
        self._on_result(result)
        self._wake()

    async def _send(self, session: Session, prompt: Prompt, max_tokens: int) -> Answered:
        return await self._target.send(
            prompt,
            max_tokens=max_tokens,
            tenant=session.tenant,
            public_tokens=session.public_tokens,
            public_messages=session.public_messages,
        )

    async def _sleep_until(self, moment: float) -> None:
        """Return at this moment, or when something has happened that may be earlier."""
        loop = asyncio.get_running_loop()
        self._sleep = sleep = loop.create_future()
        timer = None
        if moment < math.inf:
            timer = loop.call_later(moment - self._now(), self._wake)
        try:
            await sleep
        finally:
            self._sleep = None
            if timer is not None:
                timer.cancel()

    def _now(self) -> float:
        """Seconds since the load began."""
        return self._clock() - self._start

    def _wake(self) -> None:
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)
