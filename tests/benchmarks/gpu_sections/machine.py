"""Versions, and the two ceilings of the device: its memory and its matrix units."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import torch
import triton
from report import Row

from gpu_sections.cases import Scope, stopwatch


def machine(scope: Scope) -> Iterator[Row]:
    """Gigabytes a second of a copy, and operations a second of a matrix product."""
    print(f"Python {platform.python_version()}, torch {torch.__version__}, triton {triton.__version__}")
    if scope.device.type == "cuda":
        properties = torch.cuda.get_device_properties(0)
        print(
            f"{properties.name}, {properties.multi_processor_count} processors, "
            f"{properties.total_memory >> 30} GiB, L2 {properties.L2_cache_size >> 20} MiB"
        )
    num_elements, width = scope.choose((1 << 10, 64), (1 << 29, 8192), (1 << 29, 8192))
    source, target = torch.randn(2, num_elements, device=scope.device)
    seconds = stopwatch(lambda: target.copy_(source), scope.device)()
    yield Row(name="device copy", value=2 * source.nbytes / seconds * 1e-9, unit="GB/s")
    left, right = torch.randn(2, width, width, device=scope.device).bfloat16()
    seconds = stopwatch(lambda: left @ right, scope.device)()
    yield Row(name="bf16 matrix product", value=2 * width**3 / seconds * 1e-12, unit="TFLOP/s")
