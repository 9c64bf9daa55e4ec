"""How a workload is sent, by a clock that jumps."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from support.scripted_target import ListedWorkload, ScriptedTarget, one_turn
from support.virtual_time import run_in_virtual_time

from prefixcache_client.errors import PrefixCacheClientError, UnavailableError
from prefixcache_client.load.arrivals import Arrivals, Bursts, ClosedLoop, ConstantRate, Planned, Poisson
from prefixcache_client.load.measurement import Measurement, RequestResult
from prefixcache_client.load.runner import Runner
from prefixcache_client.load.session import Session, Turn, Workload
from prefixcache_client.load.target import Refused

ABOUT = 1e-3
"""Seconds by which a moment may differ: every turn of the loop takes a little."""


def send(
    workload: Workload,
    target: ScriptedTarget,
    arrivals: Arrivals,
    *,
    meanwhile: Callable[[Runner], Any] | None = None,
    **options: Any,
) -> Measurement:
    """What `Runner.run` gives; `meanwhile` is called before it, with the runner, in its loop."""

    async def run() -> Measurement:
        runner = Runner(workload, target, arrivals, clock=asyncio.get_running_loop().time, **options)
        if meanwhile is not None:
            meanwhile(runner)
        return await runner.run()

    return run_in_virtual_time(run())


def endless() -> ListedWorkload:
    return ListedWorkload(listed=itertools.repeat(one_turn()))


def after(seconds: float, call: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_later(seconds, call)


@pytest.mark.parametrize("latency", [0.0, 1.0, 30.0])
def test_b138_a_held_rate_does_not_wait_for_answers(latency: float) -> None:
    """50 a second for 20 s are 1,000, sent when they were planned, however slow the server is."""
    target = ScriptedTarget(latency=lambda number: latency)
    measurement = send(endless(), target, ConstantRate(rate=50), duration_seconds=20)

    assert len(target.sent) == len(measurement.results) == measurement.num_planned == 1000
    assert max(result.late_seconds for result in measurement.results) < ABOUT
    assert [result.planned for result in measurement.results] == [i / 50 for i in range(1000)]
    assert all(result.total_seconds == pytest.approx(latency, abs=ABOUT) for result in measurement.results)
    assert target.most_in_flight == pytest.approx(max(1, min(1000, 50 * latency)), abs=1)


def test_b138_poisson_arrivals_keep_the_rate_on_average_and_come_again() -> None:
    arrivals = Poisson(rate=50, seed=5)
    target = ScriptedTarget(latency=lambda number: 1.0)
    loads = [send(endless(), target, arrivals, duration_seconds=20) for _ in range(2)]

    assert len(loads[0].results) == pytest.approx(1000, rel=0.1)
    assert [r.planned for r in loads[0].results] == [r.planned for r in loads[1].results]


def test_latency_counts_from_the_planned_moment_when_the_sender_was_held_up() -> None:
    """A second in which nothing could be sent delays the requests of that second, and is told of all."""

    def stall(loop: Any) -> None:
        loop._jumping.now += 1.0  # as if something else had kept the process from running

    measurement = send(
        endless(),
        ScriptedTarget(latency=lambda number: 0.1),
        ConstantRate(rate=10),
        duration_seconds=4,
        meanwhile=lambda runner: after(1.95, lambda: stall(asyncio.get_running_loop())),
    )

    assert len(measurement.results) == 40
    late = [result for result in measurement.results if result.late_seconds > ABOUT]
    assert [result.planned for result in late] == pytest.approx([2 + i / 10 for i in range(10)])
    for result in late:
        assert result.late_seconds == pytest.approx(2.95 - result.planned, abs=ABOUT)
        assert result.total_seconds == pytest.approx(2.95 - result.planned + 0.1, abs=ABOUT)


def test_what_is_due_while_too_much_is_in_flight_is_refused_and_never_forgotten() -> None:
    target = ScriptedTarget(latency=lambda number: 100.0)
    measurement = send(endless(), target, ConstantRate(rate=1), duration_seconds=10, max_in_flight=3)

    assert len(target.sent) == 3
    assert [result.error for result in measurement.results] == [None] * 3 + ["CLIENT_OVERLOAD"] * 7
    assert [result.planned for result in measurement.results] == list(range(10))


def test_a_closed_loop_has_so_many_sessions_live_and_no_more() -> None:
    target = ScriptedTarget(latency=lambda number: 1.0 + number % 3)
    measurement = send(endless(), target, ClosedLoop(concurrency=4), max_requests=30)

    assert len(measurement.results) == len(target.sent) == 30
    assert target.most_in_flight == 4
    ends = sorted(result.ended for result in measurement.results)
    begins = [result.planned for result in measurement.results]
    assert begins[:4] == pytest.approx([0] * 4, abs=ABOUT)
    assert begins[4:] == pytest.approx(ends[:26], abs=ABOUT)


def test_turns_wait_for_the_answer_and_the_time_to_think() -> None:
    session = Session(
        turns=(
            Turn(prompt=(1, 2), max_tokens=3, think_seconds=99),
            Turn(prompt=(3,), max_tokens=4, continues=True, think_seconds=5),
            Turn(prompt=(4,), max_tokens=5, continues=True),
        ),
        tenant="shop",
        public_tokens=2,
    )
    target = ScriptedTarget(latency=lambda number: 2.0)
    measurement = send(ListedWorkload(listed=[session]), target, ConstantRate(rate=1))

    assert [sent.prompt for sent in target.sent] == [(1, 2), [1, 2, 900, 3], [1, 2, 900, 3, 901, 4]]
    assert [sent.max_tokens for sent in target.sent] == [3, 4, 5]
    assert {(sent.tenant, sent.public_tokens) for sent in target.sent} == {("shop", 2)}
    assert [sent.moment for sent in target.sent] == pytest.approx([0, 7, 9], abs=ABOUT)
    assert [result.planned for result in measurement.results] == pytest.approx([0, 7, 9], abs=ABOUT)
    assert [(result.session, result.turn) for result in measurement.results] == [(0, 0), (0, 1), (0, 2)]


def test_texts_and_messages_continue_with_the_answer() -> None:
    text = Session(
        turns=(Turn(prompt="Q:", max_tokens=1), Turn(prompt=" Q2:", max_tokens=1, continues=True)),
        seconds=0,
    )
    hello, more = {"role": "user", "content": "hello"}, {"role": "user", "content": "more"}
    chat = Session(
        turns=(Turn(prompt=[hello], max_tokens=1), Turn(prompt=[more], max_tokens=1, continues=True)),
        seconds=10,
        public_messages=1,
    )
    target = ScriptedTarget(tells_ids=False)
    send(ListedWorkload(listed=[text, chat]), target, Planned())

    assert [sent.prompt for sent in target.sent] == [
        "Q:",
        "Q: a0 Q2:",
        [hello],
        [hello, {"role": "assistant", "content": " a2"}, more],
    ]
    assert [sent.public_messages for sent in target.sent] == [0, 0, 1, 1]


def test_a_turn_that_does_not_continue_begins_anew() -> None:
    session = Session(turns=(Turn(prompt=(1, 2), max_tokens=1), Turn(prompt=(3,), max_tokens=1)))
    target = ScriptedTarget()
    send(ListedWorkload(listed=[session]), target, ConstantRate(rate=1))

    assert [sent.prompt for sent in target.sent] == [(1, 2), (3,)]


def test_token_ids_cannot_continue_an_answer_of_text() -> None:
    turns = (Turn(prompt=(1,), max_tokens=1), Turn(prompt=(2,), max_tokens=1, continues=True))
    workload = ListedWorkload(listed=[Session(turns=turns)])

    with pytest.raises(PrefixCacheClientError, match="answers with text only"):
        send(workload, ScriptedTarget(tells_ids=False), ConstantRate(rate=1))


def test_a_session_ends_with_its_first_turn_that_fails() -> None:
    turns = tuple(Turn(prompt=(i,), max_tokens=1) for i in range(3))
    target = ScriptedTarget(
        refuses=lambda number: Refused("RESOURCE_EXHAUSTED", "full") if number == 1 else None
    )
    measurement = send(ListedWorkload(listed=[Session(turns=turns)] * 2), target, ConstantRate(rate=0.1))

    assert [(r.session, r.turn, r.error) for r in measurement.results] == [
        (0, 0, None),
        (0, 1, "RESOURCE_EXHAUSTED"),
        (1, 0, None),
        (1, 1, None),
        (1, 2, None),
    ]


def test_the_end_of_the_time_ends_the_sending_and_not_the_answers() -> None:
    turns = tuple(Turn(prompt=(i,), max_tokens=1) for i in range(3))
    target = ScriptedTarget(latency=lambda number: 4.0)
    measurement = send(
        ListedWorkload(listed=[Session(turns=turns)] * 9), target, ConstantRate(rate=0.5), duration_seconds=6
    )

    assert [sent.moment for sent in target.sent] == pytest.approx([0, 2, 4, 4], abs=ABOUT)
    assert all(result.error is None for result in measurement.results)
    assert measurement.seconds == pytest.approx(8, abs=ABOUT)
    assert not measurement.was_interrupted


def test_no_more_requests_than_were_allowed() -> None:
    turns = tuple(Turn(prompt=(i,), max_tokens=1) for i in range(3))
    target = ScriptedTarget(latency=lambda number: 1.0)
    measurement = send(
        ListedWorkload(listed=itertools.repeat(Session(turns=turns))),
        target,
        ClosedLoop(concurrency=2),
        max_requests=7,
    )

    assert len(target.sent) == len(measurement.results) == measurement.num_planned == 7


def test_an_interrupted_load_waits_for_what_is_in_flight_and_tells_what_there_is() -> None:
    target = ScriptedTarget(latency=lambda number: 3.0)
    measurement = send(
        endless(),
        target,
        ConstantRate(rate=10),
        max_requests=1000,
        meanwhile=lambda runner: after(2.05, runner.interrupt),
    )

    assert measurement.was_interrupted
    assert len(measurement.results) == 21
    assert measurement.num_planned == 1000
    assert all(result.error is None for result in measurement.results)


def test_a_cancelled_load_leaves_nothing_in_flight() -> None:
    target = ScriptedTarget(latency=lambda number: 60.0)

    async def run() -> None:
        runner = Runner(endless(), target, ConstantRate(rate=10), clock=asyncio.get_running_loop().time)
        load = asyncio.create_task(runner.run())
        await asyncio.sleep(1.05)
        assert target.num_in_flight == 11
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load
        await asyncio.sleep(0)
        assert target.num_in_flight == 0

    run_in_virtual_time(run())


def test_the_warm_up_is_sent_first_one_by_one_and_not_measured() -> None:
    target = ScriptedTarget(latency=lambda number: 1.0)
    workload = ListedWorkload(listed=[one_turn((3,))], first=[one_turn((1,)), one_turn((2,))])
    measurement = send(workload, target, ConstantRate(rate=1))

    assert [sent.prompt for sent in target.sent] == [(1,), (2,), (3,)]
    assert [sent.moment for sent in target.sent] == pytest.approx([0, 1, 2], abs=ABOUT)
    assert [result.planned for result in measurement.results] == [0]


def test_a_refused_warm_up_ends_the_load() -> None:
    target = ScriptedTarget(refuses=lambda number: Refused("PERMISSION_DENIED", "no such tenant"))

    with pytest.raises(PrefixCacheClientError, match=r"warms up was refused \(PERMISSION_DENIED\): no such"):
        send(ListedWorkload(listed=[], first=[one_turn()]), target, ConstantRate(rate=1))


def test_a_fault_of_the_workload_ends_the_load_at_once() -> None:
    def breaks() -> Any:
        yield from itertools.repeat(one_turn(), 400)
        raise OSError("the trace is gone")

    target = ScriptedTarget(latency=lambda number: 60.0)
    with pytest.raises(OSError, match="the trace is gone"):
        send(ListedWorkload(listed=breaks()), target, ConstantRate(rate=10))
    assert target.num_in_flight == 0


def test_sessions_of_an_endless_workload_are_made_as_they_are_sent() -> None:
    numbers = itertools.count()
    workload = ListedWorkload(listed=(one_turn((number,)) for number in numbers))
    send(workload, ScriptedTarget(), ConstantRate(rate=100), duration_seconds=10)

    assert 1000 <= next(numbers) <= 1000 + 65


def test_a_burst_is_sent_together() -> None:
    target = ScriptedTarget(latency=lambda number: 1.0)
    send(endless(), target, Bursts(rate=10, burst=50), duration_seconds=10)

    moments = [sent.moment for sent in target.sent]
    assert len(moments) == 100
    assert moments[:50] == pytest.approx([0] * 50, abs=ABOUT)
    assert moments[50:] == pytest.approx([5] * 50, abs=ABOUT)


def test_a_server_that_goes_away_does_not_take_the_measurement_with_it() -> None:
    class Gone(ScriptedTarget):
        async def stats(self) -> None:
            if self.sent:
                raise UnavailableError("gone")

    measurement = send(ListedWorkload(listed=[one_turn()]), Gone(), ConstantRate(rate=1))

    assert len(measurement.results) == 1
    assert measurement.stats_after is None


def test_everybody_who_asks_is_told_of_each_result_once() -> None:
    told: list[RequestResult] = []
    measurement = send(
        endless(),
        ScriptedTarget(latency=lambda number: 2.0 - number % 2),
        ConstantRate(rate=10),
        max_requests=20,
        on_result=told.append,
    )

    assert sorted(told, key=lambda result: result.session) == list(measurement.results)
    assert [result.session for result in measurement.results] == list(range(20))


def test_a_workload_without_sessions_gives_an_empty_measurement() -> None:
    measurement = send(ListedWorkload(listed=[]), ScriptedTarget(), ClosedLoop(concurrency=3))

    assert (measurement.results, measurement.seconds, measurement.num_planned) == ((), 0.0, 0)
