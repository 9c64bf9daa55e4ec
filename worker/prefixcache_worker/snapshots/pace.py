"""How fast a save goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

BUSY_SHARE = 0.25
"""Of the time, that a save works while requests run."""


class SaveAbandonedError(Exception):
    """A save was told to end earlier than it could."""


class Pace:
    """Holds a save back while the engine has work, and ends it when its time is over.

    The save calls it between two rows. Any thread may call `hurry`.
    """

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._is_busy = is_busy
        self._hurried = threading.Event()
        self._deadline: float | None = None
        self._resumed = time.monotonic()

    def __call__(self) -> None:
        """Wait as long as the work since the last call asks for. Raises SaveAbandonedError."""
        worked = time.monotonic() - self._resumed
        if self._is_busy():
            self._hurried.wait(worked / BUSY_SHARE - worked)
        self._resumed = time.monotonic()
        if self._deadline is not None and self._resumed > self._deadline:
            raise SaveAbandonedError

    def hurry(self, deadline: float) -> None:
        """Wait no more, and end before this moment of the monotonic clock."""
        self._deadline = deadline
        self._hurried.set()
