"""The folder of one worker's snapshot."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from prefixcache.snapshot_file import remove_leftovers
from prefixcache_worker.errors import ConfigError

FILE_NAME = "cache.snapshot"


class SnapshotFolder:
    """A folder that no other worker uses until it is closed or the process ends.

    In it is one whole snapshot or none. It has what tenants have sent, so it is made for its owner alone.
    """

    def __init__(self, folder: str) -> None:
        """Make it if need be, and lock it. Raises ConfigError."""
        path = Path(folder)
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ConfigError(f"--snapshot: cannot use {folder}: {error.strerror}") from error
        try:
            # The folder itself, so that one that can only be read is locked too.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            if isinstance(error, BlockingIOError):
                raise ConfigError(
                    f"--snapshot: another worker uses {folder}; give each a folder of its own"
                ) from error
            raise ConfigError(f"--snapshot: cannot lock {folder}: {error.strerror}") from error
        self.path = path / FILE_NAME
        """Of the snapshot."""

    def close(self) -> None:
        """Others may use it. Requires: not closed."""
        os.close(self._descriptor)

    def remove_leftovers(self) -> None:
        """What a worker that was killed while it saved has left. Raises OSError."""
        remove_leftovers(self.path)
