"""What the page tells of an engine that is stepped by hand: preempted, cancelled, used wrongly."""

from __future__ import annotations

import itertools
from random import Random

from support.hand_engine import HandEngine, stream

from prefixcache_worker.server.metrics.cache_families import cache_families
from prefixcache_worker.server.metrics.reading import read
from prefixcache_worker.server.metrics.request_families import request_families
from prefixcache_worker.server.metrics.request_times import RequestTimes
from prefixcache_worker.server.metrics.tenant_families import tenant_families
from prefixcache_worker.server.metrics.tenant_totals import TenantTotals

Values = dict[tuple[str, ...], float]


class WatchedEngine(HandEngine):
    """A hand engine, and the samples of its page."""

    def __init__(self, **settings: int) -> None:
        self._times = RequestTimes(TenantTotals(5))
        super().__init__(observer=self._times, **settings)

    def scrape(self) -> tuple[Values, Values]:
        """Sums, and gauges: (sample's name, its labels' values) -> value."""
        reading = read(self.engine, self._times)
        sums: Values = {}
        gauges: Values = {}
        for metric in itertools.chain(
            request_families(reading), cache_families(reading), tenant_families(reading)
        ):
            for sample in metric.samples:
                values = gauges if metric.type == "gauge" else sums
                values[sample.name.removeprefix("prefixcache_"), *sample.labels.values()] = sample.value
        return sums, gauges


def test_b80_sums_never_fall_and_gauges_are_never_negative():
    """1000 operations, among them to cancel twice, and what has ended."""
    draw, hand, keys = Random(80), WatchedEngine(num_blocks=24, max_running=4), []
    before, _ = hand.scrape()
    for _ in range(1000):
        match draw.choice(("add", "step", "step", "step", "cancel", "preempt")):
            case "add":
                prompt = stream(draw.choice("abc"), draw.randrange(1, 60))
                keys.append(hand.add(prompt, draw.randrange(1, 6), n=draw.choice((1, 1, 2))))
            case "step" if hand.engine.has_work:
                hand.step()
            case "cancel" if keys:
                hand.engine.cancel(draw.choice(keys[-4:]))
            case "preempt" if live := [key for key in keys if key in hand.engine._answers]:
                hand.engine.preempt(draw.choice(live))
        after, gauges = hand.scrape()
        assert all(after[key] >= value for key, value in before.items())
        assert min(gauges.values()) >= 0
        assert sum(gauges["blocks", state] for state in ("free", "idle", "live")) == 24
        prompt_tokens = [after["prompt_tokens_total", source] for source in ("cached", "computed")]
        assert after["cache_hit_tokens_total",] <= after["cache_queried_tokens_total",] == sum(prompt_tokens)
        before = after
    assert before["preemptions_total",] > 10
    assert before["requests_total", "cancelled"] > 10
    assert before["cache_hit_tokens_total",] > 0


def test_b122_when_all_are_cancelled_at_once_nothing_looks_busy():
    hand = WatchedEngine(num_blocks=64, max_running=8)
    keys = [hand.add(stream("abcdesuvzx"[number % 10], 30), 9) for number in range(20)]
    hand.step()
    _, gauges = hand.scrape()
    assert (gauges["requests_running",], gauges["requests_waiting",]) == (8, 12)
    assert gauges["requests_waiting_by_priority", "normal"] == 12
    assert gauges["longest_sequence_tokens",] == gauges["mean_sequence_tokens",] == 30
    assert gauges["running_tokens",] == 8 * 30
    assert gauges["kv_waste_ratio",] == 2 / 32
    for key in keys:
        hand.engine.cancel(key)
    _, gauges = hand.scrape()
    for name in ("requests_running", "requests_waiting", "running_tokens", "kv_cache_usage_ratio"):
        assert gauges[name,] == 0
    assert gauges["blocks", "live"] == gauges["longest_sequence_tokens",] == gauges["kv_waste_ratio",] == 0


def test_b131_what_is_found_after_a_preemption_is_no_hit():
    """20 prompts without a common prefix, over a pool that holds a few of them."""
    hand = WatchedEngine(num_blocks=12, max_running=8)
    for number in range(20):
        hand.add([2 + number, *stream("a", 40)[1:]], 12)
    while hand.engine.has_work:
        hand.step()
        running = list(hand.engine._answers)
        if hand.engine.stats().requests.preemptions < 8 and running:
            hand.engine.preempt(running[0])
    sums, _ = hand.scrape()
    assert sums["preemptions_total",] >= 5
    assert sums["cache_hit_tokens_total",] == sums["prompt_tokens_total", "cached"] == 0
    assert sums["cache_queried_tokens_total",] == sums["prompt_tokens_total", "computed"] == 20 * 40


def test_shared_rows_are_read_once():
    hand = WatchedEngine(num_blocks=64)
    hand.generate(stream("a", 200), 1)
    before, _ = hand.scrape()
    for _ in range(2):
        hand.add(stream("a", 200), 1)
    hand.step()
    after, gauges = hand.scrape()
    gained = {name: after[name,] - before[name,] for name in ("kv_rows_read_total", "kv_rows_unshared_total")}
    assert gained == {"kv_rows_read_total": 192 + 8 + 8, "kv_rows_unshared_total": 400}
    assert after["blocks_copied_total",] == 2
    assert after["step_sequences_sum",] - before["step_sequences_sum",] == 2
    assert after["block_reuse_gap_seconds_count",] == 2 * 12
    assert gauges["estimated_hit_ratio", "1"] > 0
