"""A rate that grows until the server no longer keeps up."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field, replace

import pytest
from support.scripted_target import ListedWorkload, ScriptedTarget, one_turn
from support.virtual_time import run_in_virtual_time

from prefixcache_client.load.measurement import Measurement
from prefixcache_client.load.ramp import Ramp, RampOutcome, RampStep
from prefixcache_client.load.report.slo import Slo
from prefixcache_client.load.report.summary import summarize
from prefixcache_client.load.report.tables import whole_tables
from prefixcache_client.load.runner import Runner
from prefixcache_client.load.target import Answered


@dataclass(slots=True, kw_only=True)
class OneByOne(ScriptedTarget):
    """Has one request in flight at any time, and lets the others wait."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def send(self, prompt: object, **options: object) -> Answered:  # type: ignore[override]
        async with self.turn:
            return await ScriptedTarget.send(self, prompt, **options)  # type: ignore[arg-type]


def send(ramp: Ramp, target: ScriptedTarget) -> Measurement:
    async def run() -> Measurement:
        workload = ListedWorkload(listed=itertools.repeat(one_turn()))
        return await Runner(workload, target, ramp, clock=asyncio.get_running_loop().time).run()

    return run_in_virtual_time(run())


def remark(ramp: Ramp, measurement: Measurement) -> str:
    """What the report says of the ramp."""
    tables = whole_tables(summarize(measurement, Slo(), ramp=ramp))
    (table,) = (table for table in tables if table.title == "Ramp")
    return table.remark


def test_the_knee_is_the_last_rate_that_was_kept() -> None:
    ramp = Ramp(first_rate=4, last_rate=100, rate_step=4, step_seconds=10)
    measurement = send(ramp, OneByOne(latency=lambda number: 0.1))

    outcome = ramp.outcome(measurement.results)
    steps = outcome.steps
    assert [step.rate for step in steps] == [4, 8, 12], "12 a second are too many, and 16 were never tried"
    assert [step.num_offered for step in steps] == [20, 40, 60]
    assert [step.num_kept for step in steps] == pytest.approx([20, 40, 50], abs=1)
    assert outcome.knee == 8
    assert len(measurement.results) == 40 + 80 + 120
    assert remark(ramp, measurement) == (
        "the knee: the server kept up with 8 a second, and not with the next rate"
    )


def test_limits_find_the_knee_before_the_throughput_falls() -> None:
    """Answers in time are what counts: here those of a rate whose answers are late."""
    ramp = Ramp(
        first_rate=2, last_rate=10, rate_step=2, step_seconds=10, keeps=Slo(total_seconds=1.0).is_kept
    )
    slow_from_the_third_step_on = 20 + 40
    target = ScriptedTarget(latency=lambda number: 0.5 if number < slow_from_the_third_step_on else 2.0)
    measurement = send(ramp, target)

    assert ramp.outcome(measurement.results).knee == 4
    assert [step.rate for step in ramp.outcome(measurement.results).steps] == [2, 4, 6]


def test_a_fast_server_is_taken_to_the_last_rate() -> None:
    ramp = Ramp(first_rate=1, last_rate=5, rate_step=2, step_seconds=4)
    measurement = send(ramp, ScriptedTarget(latency=lambda number: 1.0))

    assert [result.planned for result in measurement.results] == [
        step * 4 + i / rate for step, rate in enumerate((1, 3, 5)) for i in range(4 * rate)
    ]
    assert ramp.outcome(measurement.results).knee == 5
    assert remark(ramp, measurement) == "the server kept up with every rate up to 5 a second"


def test_a_server_that_keeps_up_with_nothing_has_no_knee() -> None:
    ramp = Ramp(first_rate=5, last_rate=50, rate_step=5, step_seconds=4)
    measurement = send(ramp, ScriptedTarget(latency=lambda number: 60.0))

    assert len(measurement.results) == 20
    assert ramp.outcome(measurement.results).knee is None
    assert remark(ramp, measurement) == "the server does not keep up with 5 a second: begin with less"


def test_the_last_rate_is_reached_in_spite_of_rounding() -> None:
    ramp = Ramp(first_rate=0.1, last_rate=0.3, rate_step=0.1, step_seconds=10)
    measurement = send(ramp, ScriptedTarget())

    assert [step.rate for step in ramp.outcome(measurement.results).steps] == pytest.approx([0.1, 0.2, 0.3])


def test_a_ramp_that_was_broken_off_at_once_has_no_table() -> None:
    ramp = Ramp(first_rate=1, last_rate=2, rate_step=1)
    measurement = replace(send(ramp, ScriptedTarget()), results=())
    summary = summarize(measurement, Slo(), ramp=ramp)
    assert summary.ramp == RampOutcome(steps=(), knee=None)
    assert "Ramp" not in [table.title for table in whole_tables(summary)]


@pytest.mark.parametrize(
    ("num_offered", "num_kept", "is_kept_up"),
    [(100, 90, True), (100, 89, True), (100, 88, False), (1, 0, True), (3, 1, False), (0, 0, True)],
)
def test_a_rate_is_kept_up_with_when_the_share_is_but_for_one_request(
    num_offered: int, num_kept: int, is_kept_up: bool
) -> None:
    step = RampStep(rate=10.0, num_offered=num_offered, num_kept=num_kept)
    assert step.is_at_least(0.9) is is_kept_up


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"first_rate": 0, "last_rate": 1, "rate_step": 1}, "a ramp goes from a rate above 0 upwards"),
        ({"first_rate": 2, "last_rate": 1, "rate_step": 1}, "got 2 to 1"),
        ({"first_rate": 1, "last_rate": 2, "rate_step": 0}, "must grow by more than 0, got 0"),
        ({"first_rate": 1, "last_rate": 2, "rate_step": 1, "step_seconds": 0}, "more than 0 seconds, got 0"),
    ],
)
def test_a_ramp_goes_upwards(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ramp(**settings)
