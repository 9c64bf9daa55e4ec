"""What a Prometheus server reads of a worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.engine.observer import Outcome
from prefixcache_worker.engine.stats import EngineStats, TierStats, TokenStats
from prefixcache_worker.server.served_model import ServedModel

REQUEST_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
"""Seconds, for what a whole request waits for."""
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Seconds, from one token to the next."""


class MetricsPage(NamedTuple):
    """What a scrape gets."""

    body: bytes
    content_type: str


class RequestTimes:
    """Histograms of how long requests take: an `Observer`, in a registry of its own.

    No label tells of tenants or of what they ask.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def histogram(name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(
                f"prefixcache_{name}_seconds", help_text, labels, buckets=buckets, registry=self.registry
            )

        self._queue = histogram(
            "queue", "From a request's arrival until it first runs; once for each that ran.", REQUEST_BUCKETS
        )
        self._first_token = histogram(
            "time_to_first_token",
            "From a request's arrival to its first token; once for each that got one.",
            REQUEST_BUCKETS,
        )
        self._next_token = histogram(
            "inter_token",
            "From one token of a choice to its next; one less than its tokens for each choice.",
            TOKEN_BUCKETS,
        )
        self._request = histogram(
            "request", "From a request's arrival to its end; once for each.", REQUEST_BUCKETS, "outcome"
        )
        for outcome in Outcome:
            self._request.labels(outcome.value)  # there from the start, with nothing counted

    def started(self, seconds: float) -> None:
        self._queue.observe(seconds)

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def next_token(self, seconds: float) -> None:
        self._next_token.observe(seconds)

    def ended(self, outcome: Outcome, seconds: float) -> None:
        self._request.labels(outcome.value).observe(seconds)


class Metrics:
    """The page of one worker. Counts and gauges are the engine's own, read when the page is."""

    def __init__(self, *, times: RequestTimes, engine_loop: EngineLoop, model: ServedModel) -> None:
        self._registry = times.registry
        self._engine_loop = engine_loop
        self._state = _EngineState(model)
        self._registry.register(self._state)
        self._answers = Counter(
            "prefixcache_answers",
            "Requests for an answer that a known caller made, by method and status code, refused ones too.",
            ["method", "code"],
            registry=self._registry,
        )

        self._refused_credentials = Counter(
            "prefixcache_refused_credentials",
            "Calls at either door that bore no API key of this worker's.",
            registry=self._registry,
        )

    def count_refused_credential(self) -> None:
        """Count a call whose caller is not known."""
        self._refused_credentials.inc()

    def count_answer(self, method: str, code: str) -> None:
        """Count a request for an answer that has ended, well or not, at either door."""
        self._answers.labels(method, code).inc()

    async def page(self) -> MetricsPage:
        """The page now. Waits for the end of a step; raises EngineStoppedError when there are no more."""
        self._state.stats = await self._engine_loop.call(Engine.stats)
        return MetricsPage(generate_latest(self._registry), CONTENT_TYPE_LATEST)


class _EngineState:
    """A collector of what `EngineStats` has."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self.stats: EngineStats | None = None

    def collect(self) -> Iterator[Metric]:
        yield _info(
            "build",
            "The worker's release and its model.",
            {"version": version("prefixcache"), "model": self._model.name, "model_build": self._model.build},
        )
        if self.stats is None:  # while it is registered
            return
        blocks, tokens, requests = self.stats.blocks, self.stats.tokens, self.stats.requests
        yield _info(
            "cache_config",
            "The pool's geometry.",
            {
                "block_size": str(blocks.block_size),
                "num_blocks": str(blocks.total),
                "block_bytes": str(blocks.block_bytes),
            },
        )
        yield _gauge("requests_waiting", "Sequences in the queue; each choice is one.", requests.waiting)
        yield _gauge("requests_running", "Sequences that run; each choice is one.", requests.running)
        yield _gauge(
            "kv_cache_usage_ratio", "Share of the blocks that requests hold.", blocks.live / blocks.total
        )
        yield _by_label(
            GaugeMetricFamily("prefixcache_blocks", "Blocks of the pool by state.", labels=["state"]),
            {("free",): blocks.free, ("idle",): blocks.idle, ("live",): blocks.live},
        )
        yield _by_label(
            CounterMetricFamily(
                "prefixcache_prompt_tokens",
                "Prompt tokens of requests that ran, by where their KV came from; once for each request.",
                labels=["source"],
            ),
            {("cached",): tokens.cached, ("computed",): tokens.computed},
        )
        yield _by_label(
            CounterMetricFamily("prefixcache_requests", "Requests by how they ended.", labels=["outcome"]),
            {
                (Outcome.FINISHED.value,): requests.finished,
                (Outcome.CANCELLED.value,): requests.cancelled,
                (Outcome.FAILED.value,): requests.failed,
            },
        )
        yield _counter("generated_tokens", "Tokens of answers, over all choices.", tokens.generated)
        yield _counter("preemptions", "Times that a running sequence had to give way.", requests.preemptions)
        yield _counter("steps", "Forward passes.", requests.steps)
        yield _counter("blocks_evicted", "Cached blocks given up for room.", blocks.evicted)
        yield _counter("blocks_copied", "Blocks copied because one who writes shared them.", blocks.copied)
        yield from _tier_metrics(tokens, self.stats.tiers)


def _tier_metrics(tokens: TokenStats, tiers: Sequence[TierStats]) -> Iterator[Metric]:
    """Families without samples where there are no tiers."""
    places: dict[tuple[str, ...], float] = {}
    moves: dict[tuple[str, ...], float] = {}
    for tier in tiers:
        places[tier.name, "used"] = tier.used_blocks
        places[tier.name, "free"] = tier.num_blocks - tier.used_blocks
        moves[tier.name, "stored"] = tier.stored
        moves[tier.name, "restored"] = tier.restored
        moves[tier.name, "evicted"] = tier.evicted
    yield _counter("restored_tokens", "Cached prompt tokens whose KV came back from a tier.", tokens.restored)
    yield _by_label(
        GaugeMetricFamily("prefixcache_tier_blocks", "Places of a tier by state.", labels=["tier", "state"]),
        places,
    )
    yield _by_label(
        CounterMetricFamily(
            "prefixcache_tier_blocks_moved",
            "Blocks that came into a tier, went back to the pool, or were given up.",
            labels=["tier", "way"],
        ),
        moves,
    )


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"prefixcache_{name}", help_text, value=value)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(f"prefixcache_{name}", help_text, value=value)


def _info(name: str, help_text: str, values: dict[str, str]) -> Metric:
    return InfoMetricFamily(f"prefixcache_{name}", help_text, value=values)


def _by_label(
    family: GaugeMetricFamily | CounterMetricFamily, value_by_labels: Mapping[tuple[str, ...], float]
) -> Metric:
    for labels, value in value_by_labels.items():
        family.add_metric(labels, value)
    return family
