"""`connection.py` for an event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

import grpc

from prefixcache_client.channel import CHANNEL_OPTIONS, caller_metadata, checked_address
from prefixcache_client.errors import error_from_rpc
from prefixcache_client.tls import Tls
from prefixcache_client.tracing import NO_SPAN, Span

T = TypeVar("T")


class AsyncConnection:
    """What `AsyncClient` and its parts make their calls on."""

    def __init__(
        self,
        address: str,
        *,
        api_key: str | None,
        tenant: str | None,
        tls: Tls | None,
        deadline: float | None,
    ) -> None:
        """Requires and raises what `AsyncClient` does."""
        self.address = checked_address(address)
        self._metadata = caller_metadata(tenant=tenant, api_key=api_key)
        self._deadline = deadline
        if tls is None:
            self.channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        else:
            self.channel = grpc.aio.secure_channel(address, tls.credentials(), options=CHANNEL_OPTIONS)

    async def close(self) -> None:
        """End it. Calls that still run are cancelled."""
        await self.channel.close()

    async def call(self, method: Callable[..., Any], request: Any, deadline: float | None) -> Any:
        """The worker's one response. Raises an error of `errors.py`."""
        try:
            return await method(request, timeout=self._timeout(deadline), metadata=self._metadata)
        except grpc.RpcError as error:
            raise error_from_rpc(error, address=self.address) from error

    async def events(
        self,
        method: Callable[..., Any],
        request: Any,
        event_from: Callable[[Any], T],
        deadline: float | None,
        span: Span = NO_SPAN,
    ) -> AsyncGenerator[T, None]:
        """What comes, piece by piece. The call starts with the first step; leaving cancels it.

        Raises an error of `errors.py`.
        """
        with span:
            metadata = self._metadata + span.metadata
            call = method(request, timeout=self._timeout(deadline), metadata=metadata)
            try:
                async for response in call:
                    event = event_from(response)
                    span.note(event)
                    yield event
            except grpc.RpcError as error:
                raise error_from_rpc(error, address=self.address) from error
            finally:
                call.cancel()  # does nothing once the call has ended

    def _timeout(self, deadline: float | None) -> float | None:
        return self._deadline if deadline is None else deadline
