"""The file of API keys, as `prefixcache keys` changes it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.server.access.api_keys import KeyRing, StoredKey, keys_from_text, keys_to_text


class KeyFile:
    """Changes to one file. Each is whole or not at all, and none is lost to another one at the same time."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()  # what a link leads to is replaced, not the link

    def read(self) -> list[StoredKey]:
        """All keys, in the order in which they were added. Raises ConfigError."""
        return list(self._read())

    def add(self, key: StoredKey) -> None:
        """Keep one more key; the first one makes the file. Raises ConfigError."""
        with self._locked():
            keys = self._read() if self._path.exists() else KeyRing()
            self._write([*keys, key])

    def revoke(self, key_id: str) -> StoredKey:
        """Drop a key and return it. Raises ConfigError, also when there is none of this id."""
        with self._locked():
            keys = list(self._read())
            kept = [key for key in keys if key.id != key_id]
            if len(kept) == len(keys):
                raise ConfigError(f"{self._path} has no key {key_id!r}; `prefixcache keys list` shows them")
            self._write(kept)
            return next(key for key in keys if key.id == key_id)

    def _read(self) -> KeyRing:
        try:
            return keys_from_text(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {self._path}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{self._path}: {error}") from error

    def _write(self, keys: Iterable[StoredKey]) -> None:
        """Replace the file by a new one that only its owner may read: the owner of the old one."""
        try:
            descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
            try:
                with open(descriptor, "w", encoding="utf-8") as file:  # mkstemp has made its mode 0600
                    self._keep_owner(descriptor)
                    file.write(keys_to_text(keys))
                    file.flush()
                    os.fsync(descriptor)
                os.replace(name, self._path)
            except BaseException:
                os.unlink(name)
                raise
        except OSError as error:
            raise ConfigError(f"cannot write {self._path}: {error.strerror}") from error

    def _keep_owner(self, descriptor: int) -> None:
        """Else a key that root adds would lock out a worker that runs as somebody else."""
        if self._path.exists():
            old, new = self._path.stat(), os.fstat(descriptor)
            if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
                os.fchown(descriptor, old.st_uid, old.st_gid)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One change at a time. The lock is the folder's: the file itself is replaced under it."""
        try:
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ConfigError(f"cannot write {self._path}: {error.strerror}") from error
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
            os.fsync(folder)
        finally:
            os.close(folder)
