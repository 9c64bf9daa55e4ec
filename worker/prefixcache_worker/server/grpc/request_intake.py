"""What stands before every call: its request has to be a message, and there has to be memory for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isasyncgen
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from prefixcache_worker.errors import InvalidRequestError
from prefixcache_worker.server.large_requests import LargeRequests
from prefixcache_worker.server.status import errors_as_status


class RequestIntake(grpc.aio.ServerInterceptor):
    """Makes messages of what clients send: of bytes that are none, INVALID_ARGUMENT; and of a large request,
    while others take the room for such, RESOURCE_EXHAUSTED."""

    def __init__(self, large_requests: LargeRequests) -> None:
        self._large_requests = large_requests

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a call with one request, which gets it as bytes; other handlers as they are."""
        handler: Any = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler  # type: ignore[no-any-return]
        parse = handler.request_deserializer

        async def unary(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            async with self._taken_in(data, parse, context) as request:
                return await handler.unary_unary(request, context)

        async def stream(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            async with self._taken_in(data, parse, context) as request:
                answer = handler.unary_stream(request, context)
                if not isasyncgen(answer):
                    await answer  # it writes by itself
                    return
                async for response in answer:
                    await context.write(response)

        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                stream, response_serializer=handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(unary, response_serializer=handler.response_serializer)

    @asynccontextmanager
    async def _taken_in(
        self, data: bytes, parse: Callable[[bytes], Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        async with errors_as_status(context):
            with self._large_requests.room() as room:
                room.grow_to(len(data))
                yield _parsed(data, parse)


def _parsed(data: bytes, parse: Callable[[bytes], Any]) -> Any:
    try:
        return parse(data)
    except DecodeError as error:
        raise InvalidRequestError("request", "its bytes are no message of this call") from error
