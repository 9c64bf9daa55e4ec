"""The same figures under the names that vLLM gives them, for dashboards and routers made for it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from prefixcache import HistogramCounts
from prefixcache_worker.engine.observer import Outcome
from prefixcache_worker.server.metrics.families import bucket_list
from prefixcache_worker.server.metrics.reading import Reading


def vllm_aliases(reading: Reading, model_name: str) -> Iterator[Metric]:
    """Each with the labels `model_name` and `engine`, which is 0. O(samples)."""
    aliases = _Aliases(model_name)
    stats, times = reading.stats, reading.times
    blocks, tokens, requests = stats.blocks, stats.tokens, stats.requests
    yield aliases.gauge("num_requests_running", "Sequences that run.", requests.running)
    yield aliases.gauge("num_requests_waiting", "Sequences in the queue.", requests.waiting)
    yield aliases.gauge(
        "kv_cache_usage_perc", "Blocks that requests hold; 1 is all.", blocks.live / blocks.total
    )
    yield aliases.counter(
        "prefix_cache_queries",
        "Prompt tokens that were looked for in the cache.",
        stats.lookups.queried_tokens,
    )
    yield aliases.counter("prefix_cache_hits", "Those that were found.", stats.lookups.hit_tokens)
    yield aliases.counter("prompt_tokens", "Prompt tokens of requests that ran.", tokens.prompt)
    yield aliases.counter("prompt_tokens_cached", "Those that were not computed.", tokens.cached)
    sources = {
        "local_compute": tokens.computed,
        "local_cache_hit": tokens.cached - tokens.restored,
        "external_kv_transfer": tokens.restored,
    }
    by_source = aliases.counter(
        "prompt_tokens_by_source", "Prompt tokens by where their KV came from.", None, "source"
    )
    for source, num_tokens in sources.items():
        by_source.add_metric(aliases.labels(source), num_tokens)
    yield by_source
    yield aliases.counter("generation_tokens", "Tokens of answers.", tokens.generated)
    yield aliases.counter(
        "num_preemptions", "Times that a running sequence had to give way.", requests.preemptions
    )
    yield aliases.counter("request_success", "Requests that finished.", requests.finished)
    config = {"block_size": str(blocks.block_size), "num_gpu_blocks": str(blocks.total)}
    geometry = aliases.gauge("cache_config_info", "The pool's geometry.", None, *config)
    geometry.add_metric(aliases.labels(*config.values()), 1)
    yield geometry
    histograms = {
        "time_to_first_token_seconds": ("From arrival to the first token.", times.first_token),
        "inter_token_latency_seconds": ("From one token to the next.", times.inter_token),
        "e2e_request_latency_seconds": (
            "From arrival to the end of a request that finished.",
            times.request[Outcome.FINISHED],
        ),
        "request_queue_time_seconds": ("From arrival until it runs.", times.queue),
        "request_prefill_time_seconds": ("From when it runs to the first token.", times.prefill),
        "request_decode_time_seconds": ("From the first token to the end.", times.decode),
        "iteration_tokens_total": ("Tokens of a step.", times.step_tokens),
    }
    if stats.life is not None:
        histograms |= {
            "kv_block_lifetime_seconds": (
                "From when a block was stored to its eviction.",
                stats.life.residency,
            ),
            "kv_block_idle_before_evict_seconds": ("From its last use to its eviction.", stats.life.idle),
            "kv_block_reuse_gap_seconds": ("From one use of a block to the next.", stats.life.reuse_gap),
        }
    for name, (help_text, counts) in histograms.items():
        yield aliases.histogram(name, help_text, counts)


class _Aliases:
    """Makes families with vLLM's prefix and labels."""

    def __init__(self, model_name: str) -> None:
        self._labels = {"model_name": model_name, "engine": "0"}

    def labels(self, *values: str) -> tuple[str, ...]:
        return (*self._labels.values(), *values)

    def gauge(self, name: str, help_text: str, value: float | None, *labels: str) -> GaugeMetricFamily:
        """Without a value, a family to add to."""
        family = GaugeMetricFamily(f"vllm:{name}", help_text, labels=(*self._labels, *labels))
        if value is not None:
            family.add_metric(self.labels(), value)
        return family

    def counter(self, name: str, help_text: str, value: float | None, *labels: str) -> CounterMetricFamily:
        """As `gauge`."""
        family = CounterMetricFamily(f"vllm:{name}", help_text, labels=(*self._labels, *labels))
        if value is not None:
            family.add_metric(self.labels(), value)
        return family

    def histogram(self, name: str, help_text: str, counts: HistogramCounts) -> HistogramMetricFamily:
        family = HistogramMetricFamily(f"vllm:{name}", help_text, labels=tuple(self._labels))
        family.add_metric(self.labels(), bucket_list(counts), counts.sum)
        return family
