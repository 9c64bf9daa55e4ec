"""prefixcache.v1.DiagnosisService over the engine."""

from __future__ import annotations

from typing import Any

import grpc

from prefixcache.v1 import diagnosis_pb2, diagnosis_pb2_grpc
from prefixcache_worker.diagnosis.diagnosis import Diagnosis
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.server.access.access import Access
from prefixcache_worker.server.access.caller import Role
from prefixcache_worker.server.grpc.diagnosis_messages import (
    layout_to_proto,
    profile_to_proto,
    speed_to_proto,
    step_to_proto,
)
from prefixcache_worker.server.grpc.grpc_call import authorised
from prefixcache_worker.server.live_requests import live_requests
from prefixcache_worker.server.validation.diagnosis import (
    max_steps_from_proto,
    num_rows_from_proto,
    profile_order_from_proto,
)

TRACE_PIECE_BYTES = 1 << 20


class DiagnosisServicer(diagnosis_pb2_grpc.DiagnosisServiceServicer):
    """Translates between messages and what looks into the engine; decides nothing."""

    def __init__(self, *, engine_loop: EngineLoop, diagnosis: Diagnosis, access: Access) -> None:
        self._engine_loop = engine_loop
        self._diagnosis = diagnosis
        self._access = access

    async def ListRequests(
        self,
        request: diagnosis_pb2.ListRequestsRequest,
        context: grpc.aio.ServicerContext[Any, diagnosis_pb2.ListRequestsResponse],
    ) -> diagnosis_pb2.ListRequestsResponse:
        async with authorised(context, self._access) as caller:
            tenant = None if caller.is_admin else caller.tenant
            return await self._engine_loop.call(lambda engine: live_requests(engine, tenant))

    async def GetSettings(
        self,
        request: diagnosis_pb2.GetSettingsRequest,
        context: grpc.aio.ServicerContext[Any, diagnosis_pb2.GetSettingsResponse],
    ) -> diagnosis_pb2.GetSettingsResponse:
        async with authorised(context, self._access) as caller:
            caller.require(Role.ADMIN, "GetSettings")
            return diagnosis_pb2.GetSettingsResponse(
                settings=self._diagnosis.settings, machine=self._diagnosis.machine
            )

    async def GetLayout(
        self,
        request: diagnosis_pb2.GetLayoutRequest,
        context: grpc.aio.ServicerContext[Any, diagnosis_pb2.GetLayoutResponse],
    ) -> diagnosis_pb2.GetLayoutResponse:
        async with authorised(context, self._access) as caller:
            caller.require(Role.ADMIN, "GetLayout")
            return layout_to_proto(self._diagnosis.store, self._diagnosis.machine["attention"])

    # A coroutine that writes, so that a watcher that goes away ends it at once.
    async def WatchSteps(  # type: ignore[override]
        self,
        request: diagnosis_pb2.WatchStepsRequest,
        context: grpc.aio.ServicerContext[Any, diagnosis_pb2.WatchStepsResponse],
    ) -> None:
        async with authorised(context, self._access) as caller:
            caller.require(Role.ADMIN, "WatchSteps")
            max_steps = max_steps_from_proto(request)
            async with self._diagnosis.steps.watch() as watch:
                await context.send_initial_metadata(())  # says that no step from now on is missed
                number = 0
                while max_steps is None or number < max_steps:
                    step = await watch.next()
                    number = step.number
                    await context.write(step_to_proto(step))

    async def CheckIndexes(
        self,
        request: diagnosis_pb2.CheckIndexesRequest,
        context: grpc.aio.ServicerContext[Any, diagnosis_pb2.CheckIndexesResponse],
    ) -> diagnosis_pb2.CheckIndexesResponse:
        async with authorised(context, self._access) as caller:
            caller.require(Role.ADMIN, "CheckIndexes")
            check = await self._diagnosis.check_indexes()
            return diagnosis_pb2.CheckIndexesResponse(**check._asdict())

    async def ProfileSteps(  # type: ignore[override]
        self,
        request: diagnosis_pb2.ProfileStepsRequest,
        context: grpc.aio.ServicerContext[Any, diagnosis_pb2.ProfileStepsResponse],
    ) -> None:
        async with authorised(context, self._access) as caller:
            caller.require(Role.ADMIN, "ProfileSteps")
            order = profile_order_from_proto(request)
            profile = await self._diagnosis.profiler.profile(
                order.num_steps, timeout_seconds=order.timeout_seconds
            )
            await context.write(diagnosis_pb2.ProfileStepsResponse(profile=profile_to_proto(profile)))
            trace = profile.trace if request.with_trace else b""
            for first in range(0, len(trace), TRACE_PIECE_BYTES):
                piece = trace[first : first + TRACE_PIECE_BYTES]
                await context.write(diagnosis_pb2.ProfileStepsResponse(trace=piece))

    async def MeasureMachine(
        self,
        request: diagnosis_pb2.MeasureMachineRequest,
        context: grpc.aio.ServicerContext[Any, diagnosis_pb2.MeasureMachineResponse],
    ) -> diagnosis_pb2.MeasureMachineResponse:
        async with authorised(context, self._access) as caller:
            caller.require(Role.ADMIN, "MeasureMachine")
            num_rows = num_rows_from_proto(request)
            return speed_to_proto(await self._diagnosis.measure_machine(num_rows))
