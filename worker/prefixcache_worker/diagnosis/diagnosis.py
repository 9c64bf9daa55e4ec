"""All that can be looked into of a running worker."""

from __future__ import annotations

from prefixcache_worker.attention.backend import AttentionBackend
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.diagnosis.step_feed import StepFeed
from prefixcache_worker.diagnosis.worker_settings import machine_facts, settings_by_flag
from prefixcache_worker.engine.engine_loop import EngineLoop


class Diagnosis:
    """Looks into the engine between two steps, or while they run. Costs nothing while nobody asks.

    Use on the engine loop's asyncio loop.
    """

    def __init__(
        self, engine_loop: EngineLoop, config: WorkerConfig, store: KvStore, attention: AttentionBackend
    ) -> None:
        self._engine_loop = engine_loop
        self.settings = settings_by_flag(config)
        self.machine = machine_facts(config, store, attention)
        self.steps = StepFeed(engine_loop)

    def close(self) -> None:
        """End what still watches. Requires: the engine loop has stopped."""
        self.steps.close()
