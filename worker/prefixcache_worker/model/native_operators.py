"""The operators of a decoder by a compiled kernel: each is one call instead of several small ones of torch.

With a few tokens a step, starting an operator takes longer than computing it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from prefixcache_worker.native_library import NativeLibraryError, load_library

SOURCE = Path(__file__).with_name("operators_kernel.cpp")

_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int64


@cache
def _library() -> ctypes.CDLL:
    library = load_library(SOURCE)
    library.rms_norm.argtypes = [*[_POINTER] * 3, *[_INTEGER] * 2, ctypes.c_float, _INTEGER]
    library.rotate.argtypes = [_POINTER, _INTEGER, *[_POINTER] * 3, *[_INTEGER] * 4]
    for gate in (library.silu_and_multiply, library.gelu_and_multiply):
        gate.argtypes = [*[_POINTER] * 2, *[_INTEGER] * 3]
    for function in (library.rms_norm, library.rotate, library.silu_and_multiply, library.gelu_and_multiply):
        function.restype = None
    return library


@cache
def prepare_native_operators() -> bool:
    """Build and load the kernel now rather than in the first step; whether it can be had."""
    try:
        _library()
    except NativeLibraryError:
        return False
    return True


def takes(inputs: torch.Tensor) -> bool:
    """Whether the kernel can be had here and computes with such a tensor. Builds it if need be, once."""
    return inputs.dtype == torch.float32 and inputs.device.type == "cpu" and prepare_native_operators()


def rms_norm(inputs: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `operators.rms_norm`. Requires `takes(inputs)`."""
    inputs = inputs.contiguous()
    outputs = torch.empty_like(inputs)
    size = inputs.shape[-1]
    num_rows = inputs.numel() // size
    threads = torch.get_num_threads()
    _library().rms_norm(
        inputs.data_ptr(), weight.data_ptr(), outputs.data_ptr(), num_rows, size, eps, threads
    )
    return outputs


def rotate(
    heads: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    cos: torch.Tensor,  # [num_tokens, 1, head_dim / 2]
    sin: torch.Tensor,  # [num_tokens, 1, head_dim / 2]
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim]
    """See `operators.rotate`. Requires `takes(heads)`."""
    num_tokens, num_heads, head_dim = heads.shape
    if heads.stride()[1:] != (head_dim, 1):  # a token's heads lie together in what `linear` returns
        heads = heads.contiguous()
    outputs = torch.empty(num_tokens, num_heads, head_dim)
    _library().rotate(
        heads.data_ptr(),
        heads.stride(0),
        cos.contiguous().data_ptr(),
        sin.contiguous().data_ptr(),
        outputs.data_ptr(),
        num_tokens,
        num_heads,
        head_dim // 2,
        torch.get_num_threads(),
    )
    return outputs


def silu_and_multiply(
    gate_up: torch.Tensor,  # [num_tokens, 2 * intermediate_size]
) -> torch.Tensor:  # [num_tokens, intermediate_size]
    """See `operators.silu_and_multiply`. Requires `takes(gate_up)`."""
    return _gated(_library().silu_and_multiply, gate_up)


def gelu_and_multiply(
    gate_up: torch.Tensor,  # [num_tokens, 2 * intermediate_size]
) -> torch.Tensor:  # [num_tokens, intermediate_size]
    """See `operators.gelu_and_multiply`. Requires `takes(gate_up)`."""
    return _gated(_library().gelu_and_multiply, gate_up)


def _gated(gate: Callable[..., None], gate_up: torch.Tensor) -> torch.Tensor:
    gate_up = gate_up.contiguous()
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    outputs = torch.empty(num_tokens, size)
    gate(gate_up.data_ptr(), outputs.data_ptr(), num_tokens, size, torch.get_num_threads())
    return outputs
