"""The memory that large requests may take, those of both doors together."""

from __future__ import annotations

from types import TracebackType

from prefixcache_worker.errors import QueueFullError

LARGE_REQUEST_BYTES = 64 * 1024
"""Smaller requests are not counted: how many there are at once is bounded elsewhere."""
MAX_LARGE_BYTES = 64 * 1024 * 1024
"""Of large requests at once. A request takes about three times its bytes until its call ends."""


class LargeRequests:
    """How many bytes of large requests are being read or answered. For one asyncio loop."""

    def __init__(self, max_bytes: int = MAX_LARGE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0

    def room(self) -> RequestRoom:
        """Room for one request, which takes none yet."""
        return RequestRoom(self)


class RequestRoom:
    """What one request takes, until its `with` block is left."""

    def __init__(self, requests: LargeRequests) -> None:
        self._requests = requests
        self._num_bytes = 0

    def __enter__(self) -> RequestRoom:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._requests.num_bytes -= self._num_bytes
        self._num_bytes = 0

    def grow_to(self, num_bytes: int) -> None:
        """The request has so many bytes now. Raises QueueFullError if others have the room."""
        if num_bytes <= LARGE_REQUEST_BYTES:
            return
        others = self._requests.num_bytes - self._num_bytes
        if others + num_bytes > self._requests.max_bytes:
            raise QueueFullError(
                f"{others} bytes of large requests are being answered, at most "
                f"{self._requests.max_bytes} may be, and this one has {num_bytes}; try again later"
            )
        self._requests.num_bytes = others + num_bytes
        self._num_bytes = num_bytes
