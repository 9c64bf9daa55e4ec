"""What the page tells of requests and steps: how many, and how long they take."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from prefixcache_worker.engine.observer import Outcome
from prefixcache_worker.engine.stats import RequestStats
from prefixcache_worker.server.metrics.families import (
    counter,
    counters,
    gauge,
    gauges,
    histogram,
    histograms,
)
from prefixcache_worker.server.metrics.reading import Reading
from prefixcache_worker.server.metrics.request_times import TimesCounts


def request_families(reading: Reading) -> Iterator[Metric]:
    """O(samples)."""
    waiting = reading.stats.waiting
    yield from _count_families(reading.stats.requests)
    yield gauges(
        "requests_waiting_by_priority",
        "Sequences in the queue by priority: low is below 0, normal 0, high above it.",
        ["priority"],
        {("low",): waiting.low, ("normal",): waiting.normal, ("high",): waiting.high},
    )
    yield counter("generated_tokens", "Tokens of answers, over all choices.", reading.stats.tokens.generated)
    yield from _time_families(reading.times)
    yield from _step_families(reading.times)


def _count_families(requests: RequestStats) -> Iterator[Metric]:
    yield gauge("requests_waiting", "Sequences in the queue; each choice is one.", requests.waiting)
    yield gauge("requests_running", "Sequences that run; each choice is one.", requests.running)
    yield gauge(
        "running_tokens",
        "Rows of KV that the running sequences have, a shared one counted for each.",
        requests.running_tokens,
    )
    yield gauge("longest_sequence_tokens", "Rows of the longest running sequence.", requests.longest)
    yield gauge(
        "mean_sequence_tokens",
        "Rows of a running sequence in the mean; 0 when none runs.",
        requests.running_tokens / requests.running if requests.running else 0,
    )
    yield counters(
        "requests",
        "Requests by how they ended.",
        ["outcome"],
        {
            (Outcome.FINISHED.value,): requests.finished,
            (Outcome.CANCELLED.value,): requests.cancelled,
            (Outcome.FAILED.value,): requests.failed,
        },
    )
    yield counter("preemptions", "Times that a running sequence had to give way.", requests.preemptions)
    yield counter("steps", "Forward passes.", requests.steps)


def _time_families(times: TimesCounts) -> Iterator[Metric]:
    yield histogram(
        "queue_seconds", "From a request's arrival until it first runs; once for each that ran.", times.queue
    )
    yield histogram(
        "time_to_first_token_seconds",
        "From a request's arrival to its first token; once for each that got one.",
        times.first_token,
    )
    yield histogram(
        "inter_token_seconds",
        "From one token of a choice to its next; one less than its tokens for each choice.",
        times.inter_token,
    )
    yield histogram(
        "prefill_seconds",
        "From when a request first runs to its first token; once for each that got one.",
        times.prefill,
    )
    yield histogram(
        "decode_seconds",
        "From a request's first token to its end; once for each that got one and has ended.",
        times.decode,
    )
    yield histograms(
        "request_seconds",
        "From a request's arrival to its end; once for each.",
        ["outcome"],
        {(outcome.value,): counts for outcome, counts in times.request.items()},
    )


def _step_families(times: TimesCounts) -> Iterator[Metric]:
    yield histogram("step_seconds", "From the beginning of a step to its end.", times.step)
    yield histogram(
        "plan_seconds", "Of a step, choosing its sequences and planning what each reads.", times.plan
    )
    yield histogram("model_seconds", "Of a step, the forward pass; on a GPU, starting it.", times.model)
    yield histogram("step_tokens", "Tokens computed in a step.", times.step_tokens)
    yield histogram("step_sequences", "Sequences in a step.", times.step_sequences)
