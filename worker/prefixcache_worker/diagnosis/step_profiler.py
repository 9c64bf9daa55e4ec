"""Profiles of running steps, for those who ask from outside the engine's thread."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from prefixcache_worker.diagnosis.step_recorder import StepRecorder
from prefixcache_worker.diagnosis.trace import read_trace
from prefixcache_worker.diagnosis.trace_figures import TraceFigures, figures_of
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.errors import AuditError, DeadlineExceededError, EngineStoppedError


class StepProfile(NamedTuple):
    """Figures of some steps, and the trace that they were made of."""

    num_steps: int
    num_tokens: int
    kv_bytes: int
    """Keys and values that attention had to read, by the lengths of the sequences."""
    weight_bytes: int
    figures: TraceFigures
    trace: bytes
    """Compressed by gzip."""


class StepProfiler:
    """Records steps of one engine, for one caller after the other.

    Use on the engine loop's asyncio loop.
    """

    def __init__(self, engine_loop: EngineLoop, *, weight_bytes: int) -> None:
        """`weight_bytes`: what a step reads of the model's weights."""
        self._engine_loop = engine_loop
        self._weight_bytes = weight_bytes
        self._is_free = asyncio.Lock()  # torch has one profiler for the whole process

    async def profile(self, num_steps: int, *, timeout_seconds: float) -> StepProfile:
        """Record the next steps that run anything. They take longer than others, by a tenth or two.

        Raises DeadlineExceededError when they do not come in time, AuditError when the profiler fails, and
        EngineStoppedError.
        """
        async with self._is_free:
            loop = asyncio.get_running_loop()
            is_done = asyncio.Event()

            def done() -> None:
                loop.call_soon_threadsafe(is_done.set)

            recorder = await self._engine_loop.call(lambda engine: StepRecorder(engine, num_steps, done))
            try:
                await self._engine_loop.call(lambda _: recorder.start())
                async with asyncio.timeout(timeout_seconds):
                    await is_done.wait()
            except TimeoutError as error:
                raise DeadlineExceededError(
                    f"{recorder.num_steps} of {num_steps} steps came in {timeout_seconds:g} seconds; send "
                    "requests meanwhile, or ask for fewer"
                ) from error
            finally:  # also for a caller that goes away before the engine has started
                with suppress(EngineStoppedError):
                    await self._engine_loop.call(lambda _: recorder.stop())
            if recorder.has_failed:
                raise AuditError("the profiler failed, see the worker's log")
            return await asyncio.to_thread(self._read, recorder)

    def _read(self, recorder: StepRecorder) -> StepProfile:
        assert recorder.profiler is not None
        with tempfile.TemporaryDirectory(prefix="prefixcache-") as folder:
            path = Path(folder, "trace.json.gz")
            recorder.profiler.export_chrome_trace(str(path))
            return StepProfile(
                num_steps=recorder.num_steps,
                num_tokens=recorder.num_tokens,
                kv_bytes=recorder.kv_bytes,
                weight_bytes=recorder.num_steps * self._weight_bytes,
                figures=figures_of(read_trace(path)),
                trace=path.read_bytes(),
            )
