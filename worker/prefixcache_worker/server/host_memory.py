"""How much memory this machine has for us."""

from __future__ import annotations

import os
from pathlib import Path

CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where a container finds how much memory it may use, by version of the kernel's control groups."""


def host_memory_bytes() -> int:
    """What the machine has, or the part of it that this container may use."""
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [path.read_text().strip() for path in CONTAINER_LIMITS if path.is_file()]
    return min([machine_bytes, *(int(limit) for limit in limits if limit != "max")])
