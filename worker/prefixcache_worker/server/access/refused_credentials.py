"""What an operator sees of callers that are let in by nobody."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from prefixcache_worker.errors import UnauthenticatedError
from prefixcache_worker.server.access.access import Access, Metadata
from prefixcache_worker.server.access.caller import Caller

LOG_SECONDS = 10.0
"""One line at most in so long: whoever guesses keys must not fill the disk."""

logger = logging.getLogger(__name__)


class WatchedAccess:
    """Decides as another `Access` does, counts the calls that bear no credential of ours, and tells the log.

    Nothing of what they bear is shown.
    """

    def __init__(
        self, access: Access, *, count: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`count` hears of every such call."""
        self._access = access
        self._count = count
        self._clock = clock
        self._num_untold = 0
        self._told: float | None = None

    def caller(self, metadata: Metadata) -> Caller:
        try:
            return self._access.caller(metadata)
        except UnauthenticatedError as error:
            self._count()
            self._tell(error)
            raise

    def _tell(self, error: UnauthenticatedError) -> None:
        self._num_untold += 1
        now = self._clock()
        if self._told is None or now - self._told >= LOG_SECONDS:
            logger.warning("calls without a valid API key: %d; the last one: %s", self._num_untold, error)
            self._num_untold, self._told = 0, now
