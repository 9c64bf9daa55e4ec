"""How large the KV pool is."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.memory_size import format_memory
from prefixcache_worker.model.model import Model
from prefixcache_worker.server.gpu_memory import CudaMemory, pool_bytes_left

MIN_POOL_BLOCKS = 2
"""Room for a prompt and for the block its answer opens."""
USUAL_POOL_BYTES = 1 << 30
"""Of a pool on a CPU, before headroom."""


class PoolSize(NamedTuple):
    """How large the KV pool is: what was asked for, and headroom."""

    num_requested_blocks: int
    num_headroom_blocks: int
    block_bytes: int

    @property
    def num_blocks(self) -> int:
        return self.num_requested_blocks + self.num_headroom_blocks

    @property
    def pool_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    def __str__(self) -> str:
        return (
            f"{self.num_requested_blocks} KV blocks + {self.num_headroom_blocks} headroom, "
            f"{format_memory(self.block_bytes)} each, {format_memory(self.pool_bytes)} in all"
        )


def plan_pool(config: WorkerConfig, block_bytes: int, *, usual_bytes: int = USUAL_POOL_BYTES) -> PoolSize:
    """Blocks that the settings ask for, plus headroom rounded up; `usual_bytes` before headroom if they ask
    for nothing. Raises ConfigError when it is too few."""
    if config.kv_blocks is not None:
        num_requested, asked = config.kv_blocks, f"--kv-blocks: {config.kv_blocks} blocks"
    else:
        num_bytes = usual_bytes if config.kv_memory is None else config.kv_memory
        num_requested = num_bytes // block_bytes
        asked = f"--kv-memory: {format_memory(num_bytes)} gives {num_requested} blocks"
    if num_requested < MIN_POOL_BLOCKS:
        least = format_memory(MIN_POOL_BLOCKS * block_bytes)
        raise ConfigError(
            f"{asked} of {format_memory(block_bytes)}, too few for one request; "
            f"give at least {MIN_POOL_BLOCKS} blocks, {least}"
        )
    return PoolSize(num_requested, math.ceil(num_requested * config.kv_headroom), block_bytes)


def usual_pool_bytes(model: Model, config: WorkerConfig, context_length: int) -> int:
    """The pool's bytes before headroom where the settings do not say: on a GPU, what the model leaves."""
    if config.device == "cpu" or config.kv_memory is not None or config.kv_blocks is not None:
        return USUAL_POOL_BYTES
    left = pool_bytes_left(
        model,
        CudaMemory(torch.device(config.device)),
        device=config.device,
        max_batch_tokens=config.max_batch_tokens,
        max_running=config.max_running,
        context_length=context_length,
    )
    return int(left / (1 + config.kv_headroom))
