"""A file that may change while the worker runs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from prefixcache_worker.errors import ConfigError

LOOK_SECONDS = 1.0
"""How old an answer may be: the file is looked at no more often than this."""

T = TypeVar("T")
Stamp = tuple[int, int, int] | None
"""What changes when a file does: modification time, size, inode. None: it cannot be looked at."""

logger = logging.getLogger(__name__)


class WatchedFile(Generic[T]):
    """What a file says, at most `LOOK_SECONDS` behind it.

    While a new version cannot be read, the former one counts, and one line in the log says why.
    """

    def __init__(
        self,
        flag: str,
        path: Path,
        parse: Callable[[str], T],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`parse` raises ValueError, saying what is wrong with the text.

        Raises ConfigError, naming the flag, when there is nothing to begin with.
        """
        self._flag = flag
        self._path = path
        self._parse = parse
        self._clock = clock
        self._looked = clock()
        self._stamp = self._stamp_now()
        self._value = self._read()

    def read(self) -> T:
        """What it says. Most calls only read a clock; one a second looks at the file."""
        now = self._clock()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            # Before the text: when it is replaced in between, the next look reads once more.
            stamp = self._stamp_now()
            if stamp != self._stamp:
                self._stamp = stamp
                self._reload()
        return self._value

    def _reload(self) -> None:
        try:
            self._value = self._read()
        except ConfigError as error:
            logger.warning("what %s said before still counts: %s", self._path, error)
        else:
            logger.info("%s has been read again", self._path)

    def _read(self) -> T:
        try:
            return self._parse(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{self._flag}: cannot read {self._path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:  # bytes that are no UTF-8, and too deep a nest, too
            raise ConfigError(f"{self._flag}: {self._path}: {error}") from error

    def _stamp_now(self) -> Stamp:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino
