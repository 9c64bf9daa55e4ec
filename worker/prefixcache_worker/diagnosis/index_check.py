"""A proof of every invariant, whose failures are sentences."""

from __future__ import annotations

import linecache
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NamedTuple

from prefixcache_worker.engine.engine import Engine


class IndexCheck(NamedTuple):
    """What a check has found, and how much it looked at."""

    findings: tuple[str, ...]
    """Nothing, where all is well."""
    num_nodes: int
    num_blocks: int
    seconds: float


def check_indexes(engine: Engine, *, clock: Callable[[], float] = time.perf_counter) -> IndexCheck:
    """Prove all that is claimed of the cache, its indexes and the queues. Changes nothing, never raises.

    Requires: between two steps. O(everything that is cached).
    """
    begun = clock()
    findings = tuple(dict.fromkeys(_findings(engine)))  # the engine's own check asks the others again
    stats = engine.cache.stats()
    return IndexCheck(findings, stats.num_nodes, stats.num_blocks, clock() - begun)


def _findings(engine: Engine) -> Iterator[str]:
    for check in (engine.cache.check, engine.prefixes.check, engine.check):
        try:
            check()
        except Exception as error:  # whatever a broken structure makes of being looked at
            yield _sentence(error)


def _sentence(error: Exception) -> str:
    """What does not hold, and where that is claimed."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    claim = str(error) or (linecache.getline(place.filename, place.lineno or 0).strip())
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    file = place.filename.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{kind}{claim} ({file}, line {place.lineno}, in {place.name})"
