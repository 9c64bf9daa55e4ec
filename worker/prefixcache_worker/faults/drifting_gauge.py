"""The gauge of running requests is not lowered when one is cancelled.

What a gauge does that is kept by hand, up at the start and down at the end, with one way out forgotten: it
drifts away from what runs, and whoever scales or alarms by it is led astray. Nothing else is wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prefixcache_worker.engine.counters import Counters
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.stats import EngineStats


def plant(engine: Engine) -> None:
    """Every cancelled request stays in the count of those that run. Requires: none has run yet."""
    engine._counters = _DriftingCounters()


class _DriftingCounters(Counters):
    def stats(self, *arguments: Any, **options: Any) -> EngineStats:
        stats = super().stats(*arguments, **options)
        requests = replace(stats.requests, running=stats.requests.running + self.cancelled)
        return replace(stats, requests=requests)
