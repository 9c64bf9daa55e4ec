"""How long requests and steps take: what the engine's observer writes down."""

from __future__ import annotations

from typing import NamedTuple

from prefixcache import Histogram, HistogramCounts
from prefixcache_worker.engine.observer import NewTokens, Outcome, RequestEnd, StepTimes
from prefixcache_worker.server.metrics.latency import Latency, RecentSeconds
from prefixcache_worker.server.metrics.tenant_totals import TenantTotals

REQUEST_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
"""Bounds for what a whole request waits for."""
STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Bounds for a step, and from one token to the next."""
PLAN_SECONDS = (0.0001, 0.00025, 0.0005, *STEP_SECONDS)
STEP_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Bounds for the tokens and the sequences of a step."""


class TimesCounts(NamedTuple):
    """All histograms at one moment."""

    queue: HistogramCounts
    first_token: HistogramCounts
    inter_token: HistogramCounts
    prefill: HistogramCounts
    decode: HistogramCounts
    request: dict[Outcome, HistogramCounts]
    step: HistogramCounts
    plan: HistogramCounts
    model: HistogramCounts
    step_tokens: HistogramCounts
    step_sequences: HistogramCounts


class RequestTimes:
    """An `Observer`: histograms of how long things take, and what the largest tenants' requests come to.

    The engine's thread writes, and reads it in `EngineLoop.call`.
    """

    def __init__(self, tenants: TenantTotals) -> None:
        self.tenants = tenants
        self._queue = Latency(REQUEST_SECONDS)
        self._first_token = Latency(REQUEST_SECONDS)
        self._inter_token = Latency(STEP_SECONDS)
        self._prefill = Histogram(REQUEST_SECONDS)
        self._decode = Histogram(REQUEST_SECONDS)
        self._request = Latency(REQUEST_SECONDS)
        self._request_by_outcome = {outcome: Histogram(REQUEST_SECONDS) for outcome in Outcome}
        self._step = Histogram(STEP_SECONDS)
        self._plan = Histogram(PLAN_SECONDS)
        self._model = Histogram(STEP_SECONDS)
        self._step_tokens = Histogram(STEP_TOKENS)
        self._step_sequences = Histogram(STEP_TOKENS)

    def started(self, seconds: float) -> None:
        self._queue.observe([seconds])

    def got_tokens(self, tokens: NewTokens) -> None:
        self._inter_token.observe(tokens.gaps)
        self._first_token.observe([first.seconds for first in tokens.first])
        for first in tokens.first:
            self._prefill.observe(first.prefill_seconds)

    def ended(self, end: RequestEnd) -> None:
        self._request.observe([end.seconds])
        self._request_by_outcome[end.outcome].observe(end.seconds)
        if end.decode_seconds is not None:
            self._decode.observe(end.decode_seconds)
        self.tenants.add(end)

    def stepped(self, step: StepTimes) -> None:
        self._step.observe(step.seconds)
        self._plan.observe(step.plan_seconds)
        self._model.observe(step.model_seconds)
        self._step_tokens.observe(step.num_tokens)
        self._step_sequences.observe(step.num_sequences)

    def recent(self) -> dict[str, RecentSeconds]:
        """The last observations, by the names of `LatencyStats` in `prefixcache.v1`. O(1)."""
        return {
            "queue": self._queue.recent(),
            "first_token": self._first_token.recent(),
            "inter_token": self._inter_token.recent(),
            "request": self._request.recent(),
        }

    def counts(self) -> TimesCounts:
        """All histograms. O(1)."""
        return TimesCounts(
            queue=self._queue.counts(),
            first_token=self._first_token.counts(),
            inter_token=self._inter_token.counts(),
            prefill=self._prefill.counts(),
            decode=self._decode.counts(),
            request={outcome: counter.counts() for outcome, counter in self._request_by_outcome.items()},
            step=self._step.counts(),
            plan=self._plan.counts(),
            model=self._model.counts(),
            step_tokens=self._step_tokens.counts(),
            step_sequences=self._step_sequences.counts(),
        )
