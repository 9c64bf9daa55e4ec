"""What every gRPC call begins and ends with."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from prefixcache_worker.server.access.access import Access, Metadata
from prefixcache_worker.server.access.caller import Caller
from prefixcache_worker.server.call_metadata import REQUEST_ID_KEY, is_header_text
from prefixcache_worker.server.status import errors_as_status


@asynccontextmanager
async def authorised(context: grpc.aio.ServicerContext[Any, Any], access: Access) -> AsyncIterator[Caller]:
    """The body of a call, with who makes it; whatever the body raises becomes the call's status."""
    async with errors_as_status(context):
        yield access.caller(metadata_of(context))


def metadata_of(context: grpc.aio.ServicerContext[Any, Any]) -> Metadata:
    """What came with the call."""
    return context.invocation_metadata() or ()


def deadline_of(context: grpc.aio.ServicerContext[Any, Any]) -> float | None:
    """When the client gives up, by the monotonic clock; None if it waits for ever."""
    seconds_left = context.time_remaining()
    return None if seconds_left is None else time.monotonic() + seconds_left


async def send_request_id(context: grpc.aio.ServicerContext[Any, Any], request_id: str) -> None:
    """Let the client know under which name its request runs, if metadata can carry it.

    Only once it runs: a client whose call is refused before any answer may send it to another worker.
    """
    if is_header_text(request_id):
        await context.send_initial_metadata(((REQUEST_ID_KEY, request_id),))
