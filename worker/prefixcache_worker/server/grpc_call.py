"""What every gRPC call begins and ends with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from prefixcache_worker.server.access import Access
from prefixcache_worker.server.caller import Caller
from prefixcache_worker.server.status import errors_as_status


@asynccontextmanager
async def authorised(context: grpc.aio.ServicerContext[Any, Any], access: Access) -> AsyncIterator[Caller]:
    """The body of a call, with who makes it; whatever the body raises becomes the call's status."""
    async with errors_as_status(context):
        yield access.caller(context.invocation_metadata() or ())
