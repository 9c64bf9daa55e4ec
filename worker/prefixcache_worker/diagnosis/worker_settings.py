"""What makes two measurements comparable: the settings of a worker, and what it runs on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch

from prefixcache_worker.attention.backend import AttentionBackend
from prefixcache_worker.attention.cpu import CpuAttention
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.native import NativeAttention
from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.settings import SETTINGS


def settings_by_flag(config: WorkerConfig) -> dict[str, str]:
    """What the worker was given, or its default, in the words of its flags without the dashes.

    A setting that has neither is left out. No setting holds a secret: keys are in files.
    """
    values = {setting.flag.removeprefix("--"): getattr(config, setting.name) for setting in SETTINGS}
    return {
        flag: str(value).lower() if isinstance(value, bool) else str(value)
        for flag, value in values.items()
        if value is not None
    }


def machine_facts(config: WorkerConfig, store: KvStore, attention: AttentionBackend) -> dict[str, str]:
    """What the worker runs on. Requires: the process has the threads it computes with."""
    on_gpu = store.device.type == "cuda"
    return {
        "release": version("prefixcache"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": _cpu_name(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "memory_bytes": str(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        "device": torch.cuda.get_device_name(store.device) if on_gpu else config.device,
        "attention": backend_name(attention),
        "kv_dtype": store.format.name,
        "kv_layout": store.layout.order.value,
    }


def backend_name(attention: AttentionBackend) -> str:
    """The backend's name among the values of --attention."""
    if attention is CpuAttention:
        return "torch"
    return "native" if attention is NativeAttention else "triton"


def _cpu_name() -> str:
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
