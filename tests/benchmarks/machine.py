"""What the machine can do, measured: the figures that others are held against."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def read_bandwidth(rounds: int = 20) -> float:
    """Bytes a second of a sum over more memory than the caches hold: the best of the rounds."""
    memory = torch.ones(1 << 26)
    return memory.nbytes / min(seconds_of(memory.sum) for _ in range(rounds))


def peak_flops(rounds: int = 20) -> float:
    """Operations a second of a float32 product that stays in the caches: the best of the rounds."""
    size = 1024
    left, right = torch.randn(2, size, size)
    return 2 * size**3 / min(seconds_of(lambda: torch.mm(left, right)) for _ in range(rounds))
