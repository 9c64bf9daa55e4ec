"""How much of a GPU's memory is left for the KV pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from prefixcache_worker.attention.plan import SEGMENT_ROWS
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.memory_size import format_memory
from prefixcache_worker.model.model import AttentionShape, ForwardBatch, Model

SPARE_SHARE = 0.05
"""Part of the device's memory that stays free: for libraries, and for what no longer fits the gaps between
allocations."""


class DeviceMemory(Protocol):
    """The memory of one device."""

    @property
    def total_bytes(self) -> int: ...

    @property
    def free_bytes(self) -> int:
        """What could be allocated now, by this process."""
        ...

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """What `run` needs at its peak, beyond what is allocated already."""
        ...


class CudaMemory:
    """`DeviceMemory` of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def total_bytes(self) -> int:
        return torch.cuda.mem_get_info(self._device)[1]

    @property
    def free_bytes(self) -> int:
        torch.cuda.empty_cache()  # what torch keeps for itself counts as free too
        return torch.cuda.mem_get_info(self._device)[0]

    def peak_bytes(self, run: Callable[[], object]) -> int:
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - before


def pool_bytes_left(
    model: Model,
    memory: DeviceMemory,
    *,
    device: torch.device | str,
    max_batch_tokens: int,
    max_running: int,
    context_length: int,
) -> int:
    """What the KV pool can have once the weights are there and the largest step has its room.

    Runs that step, without a pool, to see. Raises ConfigError when nothing is left.
    """
    num_tokens = min(max_batch_tokens, context_length)
    step_bytes = memory.peak_bytes(lambda: _run_largest_step(model, num_tokens, device))
    attention_bytes = partial_bytes(model.attention_shape, max_batch_tokens + max_running, context_length)
    spare_bytes = int(SPARE_SHARE * memory.total_bytes)
    left = memory.free_bytes - step_bytes - attention_bytes - spare_bytes
    if left <= 0:
        raise ConfigError(
            f"--device {device}: of {format_memory(memory.total_bytes)} the weights leave "
            f"{format_memory(memory.free_bytes)}, and a step of {max_batch_tokens} tokens takes "
            f"{format_memory(step_bytes + attention_bytes)}; lower --max-batch-tokens or --context-length, "
            "or take a smaller model"
        )
    return left


def partial_bytes(shape: AttentionShape, num_tokens: int, context_length: int) -> int:
    """Room of the partial results of so many tokens at the end of their context: one for each segment."""
    num_partials = num_tokens * -(-context_length // SEGMENT_ROWS)
    return num_partials * shape.num_query_heads * (shape.head_dim + 2) * torch.float32.itemsize


def _run_largest_step(model: Model, num_tokens: int, device: torch.device | str) -> None:
    """A prompt that is scored: every token has a row of logits."""
    positions = torch.arange(num_tokens, device=device)
    model.forward(
        ForwardBatch(
            token_ids=torch.zeros_like(positions),
            positions=positions,
            prompt_lengths=torch.full_like(positions, num_tokens),
            logit_rows=positions,
        ),
        _NoAttention(),
    )


class _NoAttention:
    """`StepAttention` that reads nothing: what attention needs is known without running it."""

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Zeros. See `StepAttention.attend`."""
        return torch.zeros_like(query)
