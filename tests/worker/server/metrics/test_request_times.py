"""Which duration goes into which histogram."""

from __future__ import annotations

from prefixcache_worker.engine.observer import FirstToken, NewTokens, StepTimes
from prefixcache_worker.server.metrics.request_times import RequestTimes
from prefixcache_worker.server.metrics.tenant_totals import TenantTotals


def test_each_part_of_a_step_has_a_histogram_of_its_own() -> None:
    times = RequestTimes(TenantTotals(1))
    times.stepped(
        StepTimes(num_sequences=2, num_tokens=3, seconds=0.5, plan_seconds=0.0625, model_seconds=0.25)
    )
    counts = times.counts()
    sums = (counts.step.sum, counts.plan.sum, counts.model.sum)
    assert sums == (0.5, 0.0625, 0.25)
    assert (counts.step_tokens.sum, counts.step_sequences.sum) == (3, 2)


def test_the_first_token_counts_from_arrival_and_prefill_from_the_first_run() -> None:
    times = RequestTimes(TenantTotals(1))
    times.started(0.25)
    times.got_tokens(
        NewTokens(now=9.0, first=[FirstToken(seconds=0.75, prefill_seconds=0.5)], gaps=[0.125, 0.125])
    )
    counts = times.counts()
    sums = (counts.queue.sum, counts.first_token.sum, counts.prefill.sum, counts.inter_token.sum)
    assert sums == (0.25, 0.75, 0.5, 0.25)
    assert counts.decode.total == 0
