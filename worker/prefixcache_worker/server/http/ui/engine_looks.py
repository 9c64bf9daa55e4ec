"""Looks into the engine for pages that want to know again every second."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar, cast

from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.engine_loop import EngineLoop

FRESH_SECONDS = 0.9
"""So long what was seen is good enough: a page asks once a second."""
MAX_SHARE = 0.02
"""Of the time, that looks may take from the engine, on its thread or beside it."""
MAX_REMEMBERED = 64
"""Looks, the latest. Each is of one kind and for one tenant, or for admins."""

SeenT = TypeVar("SeenT")
ResultT = TypeVar("ResultT")


class _Remembered(NamedTuple):
    result: Any
    seen_at: float


class EngineLooks:
    """Looks at the engine as seldom as pages can bear, however many are open.

    What was seen is remembered for FRESH_SECONDS, and for longer where looking has cost much: all looks
    together take MAX_SHARE of the time, whatever the size of the cache and the number of pages. Only the
    first look of its kind goes beyond that, after a rest.

    Use on the engine loop's asyncio loop.
    """

    def __init__(self, engine_loop: EngineLoop, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine_loop = engine_loop
        self._clock = clock
        self._looking = asyncio.Lock()
        self._remembered: OrderedDict[Hashable, _Remembered] = OrderedDict()
        self._rests_until = 0.0

    async def look(
        self, kind: Hashable, see: Callable[[Engine], SeenT], digest: Callable[[SeenT], ResultT]
    ) -> ResultT:
        """What `digest` makes of what `see` sees, now or lately; equal kinds must mean equal functions.

        `see` runs between two engine steps, `digest` in a thread. Raises what they and
        `EngineLoop.call` raise.
        """
        async with self._looking:
            known = self._remembered.get(kind)
            now = self._clock()
            if known is not None and now < max(known.seen_at + FRESH_SECONDS, self._rests_until):
                self._remembered.move_to_end(kind)
                return cast(ResultT, known.result)
            if now < self._rests_until:
                await asyncio.sleep(self._rests_until - now)
            seen, see_seconds = await self._engine_loop.call(lambda engine: self._timed(see, engine))
            result, digest_seconds = await asyncio.to_thread(self._timed, digest, seen)
            now = self._clock()
            self._remembered[kind] = _Remembered(result, now)
            self._remembered.move_to_end(kind)
            if len(self._remembered) > MAX_REMEMBERED:
                self._remembered.popitem(last=False)
            self._rests_until = now + (see_seconds + digest_seconds) / MAX_SHARE
            return result

    def _timed(self, function: Callable[[SeenT], ResultT], argument: SeenT) -> tuple[ResultT, float]:
        begun = self._clock()
        result = function(argument)
        return result, self._clock() - begun
