"""One connection of the HTTP server, which cannot be held without sending requests."""

from __future__ import annotations

import asyncio
import resource
from math import inf
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

IDLE_SECONDS = 75
"""How long a connection stays open without a whole head of a request: longer than the pools of usual clients
keep theirs."""


def max_connections() -> float:
    """Half of the files that the process may have open: the other door and the disk need some as well."""
    soft_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return inf if soft_limit == resource.RLIM_INFINITY else soft_limit // 2


class BoundedConnection(H11Protocol):
    """Ends when no request has come for IDLE_SECONDS, whatever else trickles in; uvicorn's own bound is
    lifted by every byte, and begins after the first answer. Does not begin when there are too many."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._impatience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > max_connections():
            transport.abort()
        else:
            self._await_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering:
            self._stop_waiting()

    def send_400_response(self, msg: str) -> None:
        """What comes is no HTTP. In the middle of a request, nothing more is expected of it then, or sent.

        uvicorn would answer twice, and fail at the second answer.
        """
        if self._is_answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # the answer is there, or some of it
            self.transport.close()

    def on_response_complete(self) -> None:
        self._await_request()
        super().on_response_complete()
        if self._is_answering:  # the next request had come already
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_request(self) -> None:
        self._stop_waiting()
        self._impatience = self.loop.call_later(IDLE_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None
