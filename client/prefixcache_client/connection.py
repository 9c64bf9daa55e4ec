"""One channel to a worker, and what all calls on it have in common: caller, deadline, errors."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

import grpc

from prefixcache_client.channel import CHANNEL_OPTIONS, caller_metadata, checked_address
from prefixcache_client.errors import error_from_rpc
from prefixcache_client.tls import Tls
from prefixcache_client.tracing import NO_SPAN, Span

T = TypeVar("T")


class Connection:
    """What `Client` and its parts make their calls on."""

    def __init__(
        self,
        address: str,
        *,
        api_key: str | None,
        tenant: str | None,
        tls: Tls | None,
        deadline: float | None,
    ) -> None:
        """Requires and raises what `Client` does."""
        self.address = checked_address(address)
        self._metadata = caller_metadata(tenant=tenant, api_key=api_key)
        self._deadline = deadline
        if tls is None:
            self.channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        else:
            self.channel = grpc.secure_channel(address, tls.credentials(), options=CHANNEL_OPTIONS)

    def close(self) -> None:
        """End it. Calls that still run are cancelled."""
        self.channel.close()

    def call(self, method: Callable[..., Any], request: Any, deadline: float | None) -> Any:
        """The worker's one response. Raises an error of `errors.py`."""
        try:
            return method(request, timeout=self._timeout(deadline), metadata=self._metadata)
        except grpc.RpcError as error:
            raise error_from_rpc(error, address=self.address) from error

    def events(
        self,
        method: Callable[..., Any],
        request: Any,
        event_from: Callable[[Any], T],
        deadline: float | None,
        span: Span = NO_SPAN,
    ) -> Generator[T, None, None]:
        """What comes, piece by piece. The call starts with the first step; leaving cancels it.

        Raises an error of `errors.py`.
        """
        with span:
            metadata = self._metadata + span.metadata
            call = method(request, timeout=self._timeout(deadline), metadata=metadata)
            yield from self._read(call, event_from, span)

    def begun_events(
        self,
        method: Callable[..., Any],
        request: Any,
        event_from: Callable[[Any], T],
        deadline: float | None,
    ) -> Generator[T, None, None]:
        """The same of a call that has begun: returns when the worker has said so."""
        call = method(request, timeout=self._timeout(deadline), metadata=self._metadata)
        call.initial_metadata()  # waits for it
        return self._read(call, event_from, NO_SPAN)

    def _read(self, call: Any, event_from: Callable[[Any], T], span: Span) -> Generator[T, None, None]:
        try:
            for response in call:
                event = event_from(response)
                span.note(event)
                yield event
        except grpc.RpcError as error:
            raise error_from_rpc(error, address=self.address) from error
        finally:
            call.cancel()  # does nothing once the call has ended

    def _timeout(self, deadline: float | None) -> float | None:
        return self._deadline if deadline is None else deadline
