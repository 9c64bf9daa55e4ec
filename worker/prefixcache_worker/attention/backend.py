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


def choose_backend(name: str, store: KvStore) -> AttentionBackend:
    """The backend for this pool: "torch", "native", or "auto", which is native where it can be had.

    Builds the kernel if need be (seconds, once). Raises ConfigError when "native" is asked for in vain.
    """
    if name == "torch":
        return CpuAttention
    try:
        _require_native(store)
    except NativeLibraryError as error:
        if name == "native":
            raise ConfigError(f"--attention native: {error}; or use --attention torch") from error
        logger.info("attention in plain torch, which is slower: %s", error)
        return CpuAttention
    logger.info("attention by the compiled kernel")
    return NativeAttention


def _require_native(store: KvStore) -> None:
    head_dim = store.layout.shape.head_dim
    if store.device.type != "cpu":
        raise NativeLibraryError(f"it runs on a CPU, not on {store.device}")
    prepare_native_attention()
    if head_dim > max_head_dim():
        raise NativeLibraryError(f"it takes heads of up to {max_head_dim()} elements, not {head_dim}")
