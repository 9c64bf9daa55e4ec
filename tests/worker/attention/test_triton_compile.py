"""The kernels compile for an A100 and an H100 where there is no GPU, into what they were written for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import compiled_kernels
from support.compiled_kernels import CompiledKernel

SHARED_MEMORY_LIMITS = {80: 99 << 10, 90: 227 << 10}
"""Bytes that one program may use: of the smallest GPU of the generation, by compute capability."""
MAX_REGISTERS = 255


@pytest.fixture(scope="module")
def kernels() -> list[CompiledKernel]:
    """Compiled in another process: this one interprets."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    program = Path(compiled_kernels.__file__)
    result = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return [CompiledKernel(*fields) for fields in json.loads(result.stdout)]


def attention(kernels: list[CompiledKernel]) -> list[CompiledKernel]:
    found = [kernel for kernel in kernels if kernel.name.startswith("paged_attention")]
    assert len(found) == 2 * 14
    return found


def test_no_register_is_spilled(kernels):
    """None for want of registers; a few bytes, where the assembler stays below to fit one more program."""
    for kernel in kernels:
        assert kernel.local_bytes <= (16 if kernel.num_registers < MAX_REGISTERS else 0), kernel


def test_shared_memory_suffices(kernels):
    for kernel in kernels:
        assert kernel.shared_bytes <= SHARED_MEMORY_LIMITS[kernel.capability], kernel


def test_products_run_on_the_matrix_units(kernels):
    """Every attention kernel has matrix instructions, and 64 rows of half precision on an H100 its own."""
    for kernel in attention(kernels):
        wanted = "HGMMA" if kernel.capability == 90 and kernel.name.endswith(" 64") else "HMMA"
        assert wanted in kernel.instructions, kernel


def test_rows_are_fetched_ahead(kernels):
    """Keys and values come by asynchronous copies, so the next tile's loads run beside this one's sums."""
    assert all("LDGSTS" in kernel.instructions for kernel in attention(kernels))
