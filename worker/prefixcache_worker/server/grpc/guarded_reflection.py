"""gRPC reflection, for those who may call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection

from prefixcache_worker.server.access.access import Access
from prefixcache_worker.server.grpc.grpc_call import authorised


class GuardedReflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """Tells the shape of the API to every caller with a credential, of whatever role."""

    def __init__(self, service_names: Iterable[str], access: Access) -> None:
        super().__init__(service_names)
        self._access = access

    async def ServerReflectionInfo(
        self, request_iterator: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        async with authorised(context, self._access):
            async for response in super().ServerReflectionInfo(request_iterator, context):
                yield response
