"""Which attention a worker runs with."""

from __future__ import annotations

import logging
from collections.abc import Callable

from prefixcache_worker.attention.cpu import CpuAttention
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.native import NativeAttention, max_head_dim, prepare_native_attention
from prefixcache_worker.attention.plan import AttentionPlan
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.model import StepAttention
from prefixcache_worker.native_library import NativeLibraryError

AttentionBackend = Callable[[AttentionPlan, KvStore], StepAttention]
"""Makes the attention of one step."""

logger = logging.getLogger(__name__)


class _NotHereError(Exception):
    """A backend that cannot run on this machine or this pool; says why."""


def choose_backend(name: str, store: KvStore) -> AttentionBackend:
    """The backend for this pool: "torch", "native", "triton", or "auto", the fastest that can be had.

    Builds the native kernel if need be (seconds, once). Raises ConfigError when one is asked for in vain.
    """
    if name == "torch":
        return CpuAttention
    fastest = "triton" if store.device.type == "cuda" else "native"
    wanted = fastest if name == "auto" else name
    try:
        backend = _triton(store) if wanted == "triton" else _native(store)
    except _NotHereError as error:
        if name != "auto":
            raise ConfigError(f"--attention {name}: {error}; or use --attention torch") from error
        logger.info("attention in plain torch, which is slower: %s", error)
        return CpuAttention
    logger.info("attention by the %s kernel", wanted)
    return backend


def _native(store: KvStore) -> AttentionBackend:
    head_dim = store.layout.shape.head_dim
    if store.device.type != "cpu":
        raise _NotHereError(f"it runs on a CPU, not on {store.device}")
    try:
        prepare_native_attention()
    except NativeLibraryError as error:
        raise _NotHereError(str(error)) from error
    if head_dim > max_head_dim():
        raise _NotHereError(f"it takes heads of up to {max_head_dim()} elements, not {head_dim}")
    return NativeAttention


def _triton(store: KvStore) -> AttentionBackend:
    try:
        # Only here: triton is made for Linux alone, and takes a second to import.
        from prefixcache_worker.attention.triton.backend import TritonAttention, refusal
    except ImportError as error:
        raise _NotHereError(f"{error}; install triton") from error
    if reason := refusal(store):
        raise _NotHereError(reason)
    return TritonAttention
