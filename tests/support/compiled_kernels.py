"""Compiles the kernels for GPUs that need not be here, and prints what the assembler made of them, as JSON.

A program of its own: in a process that interprets kernels, they cannot be compiled.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from prefixcache_worker.attention.plan import CHUNK_ROWS
from prefixcache_worker.attention.quantize import MAX_SCALE, MIN_SCALE
from prefixcache_worker.attention.triton.block_copy import copy_blocks_kernel
from prefixcache_worker.attention.triton.kv_write import write_rows_kernel
from prefixcache_worker.attention.triton.paged_attention import paged_attention_kernel
from prefixcache_worker.attention.triton.partials import merge_partials_kernel
from prefixcache_worker.attention.triton.runtime import dot_dtype, tile_dim
from prefixcache_worker.attention.triton.tile import choose_tile

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
CAPABILITIES = (80, 90)


class CompiledKernel(NamedTuple):
    """What the assembler says of one kernel."""

    name: str
    capability: int
    shared_bytes: int
    local_bytes: int
    """Spilled registers, and whatever else of a thread did not fit its registers."""
    num_registers: int
    instructions: list[str]
    """Names of the machine instructions, each once."""


def compile_kernel(
    name: str,
    kernel: Any,
    capability: int,
    pointers: dict[str, str],
    constants: dict[str, Any],
    **options: int,
) -> CompiledKernel:
    """Compile as a launch would: pointers to int32 unless told otherwise, strides multiples of 16."""

    def type_of(argument: str) -> str:
        if argument in constants:
            return "constexpr"
        if argument.endswith("_ptr"):
            return pointers.get(argument.removesuffix("_ptr"), "*i32")
        return "fp32" if argument == "scale" else "i32"

    arguments = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={argument: type_of(argument) for argument in arguments},
        constexprs={(arguments.index(argument),): value for argument, value in constants.items()},
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, argument in enumerate(arguments)
            if argument.endswith(("_ptr", "_stride"))
        },
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _run("cuobjdump", "-res-usage", file.name)
        code = _run("cuobjdump", "-sass", file.name)
    numbers = {field: int(number) for field, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    return CompiledKernel(
        name=name,
        capability=capability,
        shared_bytes=compiled.metadata.shared,
        local_bytes=numbers["STACK"] + numbers["LOCAL"],
        num_registers=numbers["REG"],
        instructions=sorted(set(re.findall(r"/\*[0-9a-f]{4,}\*/ +(?:@!?\w+ +)?([A-Z][A-Z0-9]+)", code))),
    )


class Storage(NamedTuple):
    """What the kernels are compiled for: the type of rows and queries, and where the scales are."""

    name: str
    rows: str
    query: str
    has_row_scales: bool = False
    has_fixed_scales: bool = False


TORCH_DTYPES = {
    "*fp32": torch.float32,
    "*fp16": torch.float16,
    "*bf16": torch.bfloat16,
    "*i8": torch.int8,
    "*u8": torch.uint8,
}
STORAGES = {
    storage.name: storage
    for storage in (
        Storage("fp32", "*fp32", "*fp32"),
        Storage("fp16", "*fp16", "*fp32"),
        Storage("bf16", "*bf16", "*bf16"),
        Storage("int8/token-head", "*i8", "*bf16", has_row_scales=True),
        Storage("int8/head", "*i8", "*fp32", has_fixed_scales=True),
        Storage("int4/token-head", "*u8", "*fp32", has_row_scales=True),
    )
}
HEAD_DIMS = {"bf16": (64, 128, 256)}
TILES = {"fp32": (4,), "fp16": (64,), "int8/head": (64,)}
"""Query rows: few and many unless told otherwise."""


def compile_attention(
    storage: Storage, head_dim: int, num_queries: int, capability: int, window: int = 0
) -> CompiledKernel:
    """The kernel with the tile that is chosen for so many query rows."""
    tile = choose_tile(num_queries, head_dim, TORCH_DTYPES[storage.rows])
    return compile_kernel(
        f"paged_attention {storage.name} {head_dim} {tile.num_queries}",
        paged_attention_kernel,
        capability,
        {
            "keys": storage.rows,
            "values": storage.rows,
            "key_scales": "*fp16",
            "value_scales": "*fp16",
            "fixed_key_scale": "*fp32",
            "query": storage.query,
            "partial_output": "*fp32",
            "partial_peak": "*fp32",
            "partial_total": "*fp32",
        },
        {
            "HAS_KEY_SCALES": storage.has_row_scales,
            "HAS_VALUE_SCALES": storage.has_row_scales,
            "HAS_FIXED_KEY_SCALE": storage.has_fixed_scales,
            "IS_PACKED": storage.rows == "*u8",
            "WINDOW": window,
            "NUM_SINKS": 4 if window else 0,
            "GROUP_SIZE": 3,
            "HEAD_DIM": head_dim,
            "BLOCK_SIZE": 16,
            "CHUNK": CHUNK_ROWS,
            "TILE_QUERIES": tile.num_queries,
            "TILE_ROWS": tile.num_rows,
            "TILE_DIM": tile_dim(head_dim),
            "DOT_DTYPE": dot_dtype(TORCH_DTYPES[storage.rows]),
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def compile_all(capability: int) -> Iterator[CompiledKernel]:
    """Every kernel for every format, the attention with its narrow and its tall tile."""
    dims = {"HEAD_DIM": 80, "TILE_DIM": 128}
    for storage in STORAGES.values():
        for head_dim in HEAD_DIMS.get(storage.name, (128,)):
            for num_queries in TILES.get(storage.name, (4, 64)):
                yield compile_attention(storage, head_dim, num_queries, capability)
        yield compile_kernel(
            f"write_rows {storage.name}",
            write_rows_kernel,
            capability,
            {
                "rows": storage.query,
                "stored": storage.rows,
                "scales": "*fp32" if storage.has_fixed_scales else "*fp16",
            },
            dims
            | {
                "MAX_CODE": {"*i8": 127, "*u8": 7}.get(storage.rows, 0),
                "HAS_ROW_SCALES": storage.has_row_scales,
                "IS_PACKED": storage.rows == "*u8",
                "MIN_SCALE": MIN_SCALE,
                "MAX_SCALE": MAX_SCALE,
            },
        )
        yield compile_kernel(
            f"merge_partials {storage.name}",
            merge_partials_kernel,
            capability,
            {
                "partial_output": "*fp32",
                "partial_peak": "*fp32",
                "partial_total": "*fp32",
                "value_scale": "*fp32",
                "output": storage.query,
            },
            dims | {"GROUP_SIZE": 3, "HAS_VALUE_SCALE": storage.has_fixed_scales},
        )
        yield compile_kernel(
            f"copy_blocks {storage.name}",
            copy_blocks_kernel,
            capability,
            {"stored": storage.rows},
            {"WIDTH": 80, "TILE_WIDTH": 128, "BLOCK_SIZE": 16, "TILE_SLOTS": 16},
        )
    yield compile_attention(STORAGES["bf16"], 128, 64, capability, window=1000)


def _run(tool: str, *arguments: str) -> str:
    return subprocess.run([TOOLS / tool, *arguments], capture_output=True, text=True, check=True).stdout


def main() -> None:
    print(json.dumps([kernel for capability in CAPABILITIES for kernel in compile_all(capability)]))


if __name__ == "__main__":
    main()
