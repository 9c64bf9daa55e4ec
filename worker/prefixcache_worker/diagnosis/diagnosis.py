"""All that can be looked into of a running worker."""

from __future__ import annotations

import asyncio

from prefixcache_worker.attention.backend import AttentionBackend
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.diagnosis.index_check import IndexCheck, check_indexes
from prefixcache_worker.diagnosis.machine_speed import MachineSpeed, measure_machine
from prefixcache_worker.diagnosis.step_feed import StepFeed
from prefixcache_worker.diagnosis.step_profiler import StepProfiler
from prefixcache_worker.diagnosis.worker_settings import machine_facts, settings_by_flag
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.model.decoder import Decoder
from prefixcache_worker.model.model import Model


class Diagnosis:
    """Looks into the engine between two steps, or while they run. Costs nothing while nobody asks.

    Use on the engine loop's asyncio loop.
    """

    def __init__(
        self,
        engine_loop: EngineLoop,
        config: WorkerConfig,
        store: KvStore,
        attention: AttentionBackend,
        model: Model,
    ) -> None:
        """`model`: what the engine runs, whatever is around it."""
        self._engine_loop = engine_loop
        self._attention = attention
        self.store = store
        self.settings = settings_by_flag(config)
        self.machine = machine_facts(config, store, attention)
        self._measuring = asyncio.Lock()  # who gives up waiting for it costs the engine nothing
        self.steps = StepFeed(engine_loop)
        weight_bytes = model.weight_bytes if isinstance(model, Decoder) else 0
        self.profiler = StepProfiler(engine_loop, weight_bytes=weight_bytes)

    async def check_indexes(self) -> IndexCheck:
        """See `index_check.check_indexes`. Raises EngineStoppedError."""
        return await self._engine_loop.call(check_indexes)

    async def measure_machine(self, num_rows: int) -> MachineSpeed:
        """See `machine_speed.measure_machine`. Raises EngineStoppedError."""
        async with self._measuring:
            return await self._engine_loop.call(
                lambda engine: measure_machine(engine.kv_store, self._attention, num_rows=num_rows)
            )

    def close(self) -> None:
        """End what still watches. Requires: the engine loop has stopped."""
        self.steps.close()
