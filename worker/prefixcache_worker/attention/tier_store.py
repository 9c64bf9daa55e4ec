"""The rows of blocks that the pool has no room for: in memory, or in a file."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import torch

from prefixcache_worker.errors import ConfigError


class TierStore:
    """Records of `KvStore`, one in each place. Which block is where is the cache's business."""

    def __init__(
        self,
        records: torch.Tensor,  # [num_places, record_bytes] uint8, on the CPU
    ) -> None:
        """Requires: nobody else writes to `records`."""
        self._records = records

    @property
    def num_places(self) -> int:
        return len(self._records)

    def read(
        self, places: Sequence[int], device: torch.device
    ) -> torch.Tensor:  # [len(places), record_bytes] uint8
        """A copy of these records, on the device."""
        table = torch.empty((len(places), self._records.shape[1]), dtype=torch.uint8, device=device)
        for row, place in zip(table, places, strict=True):
            row.copy_(self._records[place], non_blocking=True)
        return table

    def write(
        self,
        places: Sequence[int],
        table: torch.Tensor,  # [len(places), record_bytes] uint8, on any device
    ) -> None:
        """Overwrite these records. Requires: no place twice."""
        for row, place in zip(table, places, strict=True):
            self._records[place].copy_(row, non_blocking=True)
        if table.device.type == "cuda":
            torch.cuda.synchronize(table.device)


def memory_tier(num_places: int, record_bytes: int, *, device: torch.device) -> TierStore:
    """In the machine's memory, out of which a GPU copies faster when it is pinned. Raises ConfigError."""
    try:
        is_pinned = device.type == "cuda"
        return TierStore(torch.empty((num_places, record_bytes), dtype=torch.uint8, pin_memory=is_pinned))
    except RuntimeError as error:  # what torch raises when an allocation fails
        raise ConfigError(
            f"--tier-memory: {num_places} blocks of {record_bytes} bytes do not fit the memory; ask for less"
        ) from error


def file_tier(path: str, num_places: int, record_bytes: int) -> TierStore:
    """In a file that is mapped into memory, with all its room reserved on the disk. Raises ConfigError.

    The file loses its name at once: so it is gone with the process, however that ends, and nobody reads it
    after a restart, when its blocks would mean nothing.
    """
    num_bytes = num_places * record_bytes
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.unlink(path)
            # Without it a full disk would show as a signal that ends the process.
            os.posix_fallocate(descriptor, 0, num_bytes)
            mapping = mmap.mmap(descriptor, num_bytes)
        finally:
            os.close(descriptor)
    except FileExistsError as error:
        raise ConfigError(f"--tier-file: {path} exists and would be overwritten; name a new file") from error
    except OSError as error:
        raise ConfigError(
            f"--tier-file: cannot make {path} with {num_bytes} bytes: {error.strerror}; "
            "name a file on a disk with room, or ask for less by --tier-file-size"
        ) from error
    return TierStore(torch.frombuffer(mapping, dtype=torch.uint8).view(num_places, record_bytes))
