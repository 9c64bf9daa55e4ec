"""Looks into the engine for pages that want to know again every second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar, cast

from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.engine_loop import EngineLoop

FRESH_SECONDS = 0.9
"""So long what was seen is good enough: a page asks once a second."""
MAX_SHARE = 0.03
"""Of the time, that looks may take from the engine, on its thread or beside it."""
FORGOTTEN_SECONDS = 10.0
"""After so long without a look the page of its kind has been closed."""

SeenT = TypeVar("SeenT")
ResultT = TypeVar("ResultT")


class _Remembered(NamedTuple):
    result: Any
    good_until: float


class EngineLooks:
    """Looks at the engine as seldom as pages can bear, however many are open.

    What was seen is remembered for FRESH_SECONDS, and for longer where looking has cost much. Every kind of
    look has an equal part of MAX_SHARE: so they cost no more together, whatever the size of the cache and
    the number of pages. Only the first look of a kind goes beyond that.

    Use on the engine loop's asyncio loop.
    """

    def __init__(self, engine_loop: EngineLoop, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine_loop = engine_loop
        self._clock = clock
        self._looking = asyncio.Lock()
        self._remembered: dict[Hashable, _Remembered] = {}

    async def look(
        self, kind: Hashable, see: Callable[[Engine], SeenT], digest: Callable[[SeenT], ResultT]
    ) -> ResultT:
        """What `digest` makes of what `see` sees, now or lately; equal kinds must mean equal functions.

        `see` runs between two engine steps, `digest` in a thread. Raises what they and
        `EngineLoop.call` raise.
        """
        async with self._looking:
            known = self._remembered.get(kind)
            if known is not None and self._clock() < known.good_until:
                return cast(ResultT, known.result)
            seen, see_seconds = await self._engine_loop.call(lambda engine: self._timed(see, engine))
            result, digest_seconds = await asyncio.to_thread(self._timed, digest, seen)
            now = self._clock()
            self._forget_closed(now)
            num_kinds = len(self._remembered) + (kind not in self._remembered)
            rest_seconds = (see_seconds + digest_seconds) * num_kinds / MAX_SHARE
            self._remembered[kind] = _Remembered(result, now + max(FRESH_SECONDS, rest_seconds))
            return result

    def _forget_closed(self, now: float) -> None:
        self._remembered = {
            kind: known
            for kind, known in self._remembered.items()
            if now < known.good_until + FORGOTTEN_SECONDS
        }

    def _timed(self, function: Callable[[SeenT], ResultT], argument: SeenT) -> tuple[ResultT, float]:
        begun = self._clock()
        result = function(argument)
        return result, self._clock() - begun
