"""The steps that a worker takes while something is done with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress

from prefixcache_client.async_client import AsyncClient
from prefixcache_client.diagnosis_answers import StepRecord
from prefixcache_client.errors import PrefixCacheClientError

_QUIET_SECONDS = 0.25
"""When nothing runs and no record has come for so long, the last one has come."""


@asynccontextmanager
async def recorded_steps(client: AsyncClient) -> AsyncIterator[list[StepRecord]]:
    """The audited steps, in order; complete once the block is left. Raises what the stream ends with."""
    steps: list[StepRecord] = []

    async def record() -> None:
        async with aclosing(client.diagnosis.watch_steps()) as stream:
            async for step in stream:
                steps.append(step)  # noqa: PERF401  # seen while it runs

    recorder = asyncio.create_task(record())
    try:
        yield steps
        num_seen = -1
        while len(steps) > num_seen:
            num_seen = len(steps)
            await asyncio.wait({recorder}, timeout=_QUIET_SECONDS)
        if recorder.done():
            recorder.result()  # raises: it ends in no other way
    finally:
        recorder.cancel()
        with suppress(asyncio.CancelledError, PrefixCacheClientError):
            await recorder
