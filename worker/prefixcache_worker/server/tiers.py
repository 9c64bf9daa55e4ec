"""The tiers behind the pool, and what copying from them costs here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from prefixcache import BlockId, RestoreRule
from prefixcache_worker.attention.backend import AttentionBackend
from prefixcache_worker.attention.by_window import attention_by_window, distinct_windows
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import SequenceSpan
from prefixcache_worker.attention.planner import AttentionPlanner
from prefixcache_worker.attention.tier_store import TierStore, file_tier, memory_tier
from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.memory_size import format_memory
from prefixcache_worker.model.model import ForwardBatch, Model

NUM_TRIALS = 3
MAX_TRIAL_BLOCKS = 16

logger = logging.getLogger(__name__)


class WorkerTiers(NamedTuple):
    """What the settings ask for, the nearest first."""

    names: tuple[str, ...] = ()
    stores: tuple[TierStore, ...] = ()
    rule: RestoreRule | None = None
    """None without tiers."""

    @property
    def sizes(self) -> list[tuple[str, int]]:
        """Names and blocks, as the cache wants to have them."""
        return [(name, store.num_places) for name, store in zip(self.names, self.stores, strict=True)]


def build_tiers(
    config: WorkerConfig,
    model: Model,
    kv_store: KvStore,
    attention: AttentionBackend,
    *,
    memory_bytes: int,
) -> WorkerTiers:
    """Make room for the tiers, and measure when they are worth copying from. Raises ConfigError.

    `memory_bytes` is what the pool has left of the machine's memory. Requires a pool that nobody uses yet:
    its rows are overwritten.
    """
    if (config.tier_file is None) != (config.tier_file_size is None):
        given, missing = "--tier-file", "--tier-file-size"
        if config.tier_file is None:
            given, missing = missing, given
        raise ConfigError(f"{given}: a tier in a file has a name and a size; give {missing} too")
    if config.tier_memory is None and config.tier_file is None:
        return WorkerTiers()
    if config.scheme != "shared":
        raise ConfigError(
            f"--scheme {config.scheme}: nothing stays that a tier could take; drop --tier-memory and "
            "--tier-file, or use --scheme shared"
        )
    names, stores = [], []
    if config.tier_memory is not None:
        if config.tier_memory > memory_bytes:
            # The kernel would promise it, and kill us when the pages are touched.
            raise ConfigError(
                f"--tier-memory: {format_memory(config.tier_memory)} is more than the "
                f"{format_memory(max(0, memory_bytes))} of memory that the KV pool leaves; ask for less"
            )
        num_places = _num_places("--tier-memory", config.tier_memory, kv_store)
        names.append("memory")
        stores.append(memory_tier(num_places, kv_store.record_bytes, device=kv_store.device))
    if config.tier_file is not None and config.tier_file_size is not None:
        num_places = _num_places("--tier-file-size", config.tier_file_size, kv_store)
        names.append("file")
        stores.append(file_tier(config.tier_file, num_places, kv_store.record_bytes))
    rule = RestoreRule(
        copy_seconds=tuple(measure_copies(kv_store, store) for store in stores),
        compute_seconds=measure_prefill(model, kv_store, attention, config.max_batch_tokens),
    )
    for name, store, seconds in zip(names, stores, rule.copy_seconds, strict=True):
        logger.info(
            "tier of %d blocks in %s: copying one there and back takes %.3f ms, computing it %.3f ms",
            store.num_places,
            name,
            1e3 * seconds,
            1e3 * rule.compute_seconds,
        )
        if seconds >= rule.compute_seconds:
            logger.warning(
                "what is faster computed is not copied back from the tier in %s; leave it out", name
            )
    return WorkerTiers(tuple(names), tuple(stores), rule)


def measure_copies(kv_store: KvStore, store: TierStore) -> float:
    """Seconds to copy a block there and back, a few at once. Overwrites the first places."""
    num_blocks = min(MAX_TRIAL_BLOCKS, kv_store.num_blocks, store.num_places)
    block_ids, places = list(map(BlockId, range(num_blocks))), range(num_blocks)

    def copy() -> None:
        store.write(places, kv_store.records(block_ids))
        kv_store.set_records(block_ids, store.read(places, kv_store.device))

    return _least_seconds(copy, kv_store.device) / num_blocks


def measure_prefill(
    model: Model, kv_store: KvStore, attention: AttentionBackend, max_batch_tokens: int
) -> float:
    """Seconds to compute a block, as a part of the largest step. Overwrites rows of the pool."""
    block_size = kv_store.block_size
    num_tokens = min(max_batch_tokens, model.context_length, kv_store.num_blocks * block_size)
    block_ids = list(map(BlockId, range(-(-num_tokens // block_size))))
    planner = AttentionPlanner(block_size, distinct_windows(kv_store.layout.shape))
    plans = planner.plan([SequenceSpan(block_ids, 0, num_tokens)])
    positions = torch.arange(num_tokens, device=kv_store.device)
    batch = ForwardBatch(torch.zeros_like(positions), positions, positions + 1, positions[-1:])

    @torch.inference_mode()
    def compute() -> None:
        model.forward(batch, attention_by_window(plans, kv_store, attention))

    return _least_seconds(compute, kv_store.device) * block_size / num_tokens


def _num_places(flag: str, num_bytes: int, kv_store: KvStore) -> int:
    num_places = num_bytes // kv_store.record_bytes
    if not num_places:
        raise ConfigError(
            f"{flag}: {format_memory(num_bytes)} is less than one block of "
            f"{format_memory(kv_store.record_bytes)}; give more"
        )
    return num_places


def _least_seconds(action: Callable[[], None], device: torch.device) -> float:
    """Of some tries, since whatever disturbs one makes it longer."""
    seconds = []
    for _ in range(NUM_TRIALS):
        start = time.monotonic()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.monotonic() - start)
    return min(seconds)
