"""The last observations of a duration, and GetStats, which tells of them."""

from __future__ import annotations

from support.hand_engine import stream
from support.metrics_page import busy_worker
from support.served_worker import greedy_request

from prefixcache_worker.server.metrics.latency import NUM_RECENT, Latency


def test_quantiles_are_observed_values_of_the_last_thousand():
    latency = Latency((1,))
    latency.observe([1000.0] * 5)
    latency.observe([number / NUM_RECENT for number in range(NUM_RECENT, 0, -1)])
    summary = latency.recent().summary()
    assert summary.count == latency.counts().total == NUM_RECENT + 5
    assert (summary.p50_seconds, summary.p90_seconds, summary.p99_seconds) == (0.5, 0.9, 0.99)
    assert latency.counts().counts == (NUM_RECENT, 5)


def test_of_a_single_observation_all_quantiles_are_it():
    latency = Latency((1,))
    latency.observe([0.25])
    summary = latency.recent().summary()
    assert summary.p50_seconds == summary.p90_seconds == summary.p99_seconds == 0.25


async def test_stats_tell_of_what_was_observed_and_why_blocks_went():
    async with busy_worker() as worker:
        before = await worker.stats()
        latencies = {latency.name: latency for latency in before.latencies}
        assert {name: latency.count for name, latency in latencies.items()} == {
            "queue": 3,
            "first_token": 3,
            "inter_token": 9,
            "request": 3,
        }
        for latency in latencies.values():
            assert 0 <= latency.p50_seconds <= latency.p90_seconds <= latency.p99_seconds
        await worker.answer(greedy_request(stream("s", 100), 1), tenant="bank")
        after = await worker.stats()
    evictions = {eviction.cause: eviction.num_blocks for eviction in after.evictions}
    evicted = sum(num for cause, num in evictions.items() if cause not in ("superseded", "reset"))
    assert evicted == after.blocks.evicted > 0
    assert set(evictions) == {
        "own_request",
        "other_request",
        "ceiling",
        "expired",
        "asked",
        "superseded",
        "reset",
    }


async def test_without_a_request_there_are_no_latencies():
    async with busy_worker(num_rounds=0) as worker:
        assert not (await worker.stats()).latencies
