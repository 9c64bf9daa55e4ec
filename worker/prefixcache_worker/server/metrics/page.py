"""The page of one worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from typing import NamedTuple

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric

from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.server.metrics.cache_families import cache_families
from prefixcache_worker.server.metrics.families import counter, counters, exposition, info
from prefixcache_worker.server.metrics.reading import Reading, read
from prefixcache_worker.server.metrics.request_families import request_families
from prefixcache_worker.server.metrics.request_times import RequestTimes
from prefixcache_worker.server.metrics.tenant_families import tenant_families
from prefixcache_worker.server.metrics.vllm_aliases import vllm_aliases
from prefixcache_worker.server.served_model import ServedModel


class MetricsPage(NamedTuple):
    """What a scrape gets."""

    body: bytes
    content_type: str


class Metrics:
    """Makes the page. Counts and gauges are the engine's own, read when the page is asked for.

    All methods are called on one asyncio loop.
    """

    def __init__(
        self,
        *,
        times: RequestTimes,
        engine_loop: EngineLoop,
        model: ServedModel,
        has_vllm_aliases: bool = False,
        has_tenants: bool = True,
    ) -> None:
        """`times`: the engine's observer."""
        self._times = times
        self._engine_loop = engine_loop
        self._model = model
        self._has_vllm_aliases = has_vllm_aliases
        self._has_tenants = has_tenants
        self._num_answers: Counter[tuple[str, str]] = Counter()
        self._num_refused_credentials = 0

    def count_refused_credential(self) -> None:
        """Count a call whose caller is not known."""
        self._num_refused_credentials += 1

    def count_answer(self, method: str, code: str) -> None:
        """Count a request for an answer that has ended, well or not, at either door."""
        self._num_answers[method, code] += 1

    async def page(self) -> MetricsPage:
        """The page now. Waits for the end of a step; raises EngineStoppedError when there are no more."""
        reading = await self._engine_loop.call(lambda engine: read(engine, self._times))
        return MetricsPage(exposition(self._families(reading)), CONTENT_TYPE_LATEST)

    def _families(self, reading: Reading) -> Iterator[Metric]:
        model = self._model
        yield info(
            "build",
            "The worker's release and its model.",
            {"version": version("prefixcache"), "model": model.name, "model_build": model.build},
        )
        yield counters(
            "answers",
            "Requests for an answer that a known caller made, by method and status code, refused ones too.",
            ["method", "code"],
            {answer: float(num) for answer, num in self._num_answers.items()},
        )
        yield counter(
            "refused_credentials",
            "Calls at either door that bore no API key of this worker's.",
            self._num_refused_credentials,
        )
        yield from request_families(reading)
        yield from cache_families(reading)
        if self._has_tenants:
            yield from tenant_families(reading)
        if self._has_vllm_aliases:
            yield from vllm_aliases(reading, model.name)
