"""prefixcache.v1.DiagnosisService over the engine."""

from __future__ import annotations

from typing import Any

import grpc

from prefixcache.v1 import diagnosis_pb2, diagnosis_pb2_grpc
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.server.access.access import Access
from prefixcache_worker.server.grpc.grpc_call import authorised
from prefixcache_worker.server.live_requests import live_requests


class DiagnosisServicer(diagnosis_pb2_grpc.DiagnosisServiceServicer):
    """Translates between messages and the engine; decides nothing."""

    def __init__(self, *, engine_loop: EngineLoop, access: Access) -> None:
        self._engine_loop = engine_loop
        self._access = access

    async def ListRequests(
        self,
        request: diagnosis_pb2.ListRequestsRequest,
        context: grpc.aio.ServicerContext[Any, diagnosis_pb2.ListRequestsResponse],
    ) -> diagnosis_pb2.ListRequestsResponse:
        async with authorised(context, self._access) as caller:
            tenant = None if caller.is_admin else caller.tenant
            return await self._engine_loop.call(lambda engine: live_requests(engine, tenant))
