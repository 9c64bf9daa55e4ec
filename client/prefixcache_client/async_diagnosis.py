"""The asynchronous client's look inside. Same calls as `diagnosis.py`."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from prefixcache.v1 import diagnosis_pb2, diagnosis_pb2_grpc
from prefixcache_client.async_connection import AsyncConnection
from prefixcache_client.diagnosis_answers import (
    IndexCheck,
    MachineSpeed,
    PoolLayout,
    ProfiledSteps,
    StepRecord,
    WorkerSettings,
    index_check_from_proto,
    layout_from_proto,
    machine_speed_from_proto,
    profiled_steps_from_proto,
    settings_from_proto,
    step_from_proto,
)


class AsyncDiagnosis:
    """`AsyncClient.diagnosis`. Every call needs an admin; deadlines and errors are the client's."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._stub = diagnosis_pb2_grpc.DiagnosisServiceStub(connection.channel)

    async def settings(self, *, deadline: float | None = None) -> WorkerSettings:
        """The worker's settings, and what it runs on.

        >>> print((await client.diagnosis.settings()).machine["attention"])
        """
        request = diagnosis_pb2.GetSettingsRequest()
        return settings_from_proto(await self._connection.call(self._stub.GetSettings, request, deadline))

    async def layout(self, *, deadline: float | None = None) -> PoolLayout:
        """Where keys and values lie in the worker's memory.

        >>> print((await client.diagnosis.layout()).order)
        """
        return layout_from_proto(
            await self._connection.call(self._stub.GetLayout, diagnosis_pb2.GetLayoutRequest(), deadline)
        )

    def watch_steps(
        self, *, max_steps: int | None = None, deadline: float | None = None
    ) -> AsyncGenerator[StepRecord, None]:
        """One audited record for each engine step; without `max_steps` for ever.

        The call starts with the first `async for`; what is called after it on this client is watched.

        >>> async for step in client.diagnosis.watch_steps(max_steps=100):
        ...     print(step.rows_read, step.findings)
        """
        request = diagnosis_pb2.WatchStepsRequest(max_steps=max_steps)
        return self._connection.events(self._stub.WatchSteps, request, step_from_proto, deadline)

    async def check_indexes(self, *, deadline: float | None = None) -> IndexCheck:
        """Prove every invariant of the cache now. Stops the engine for as long as it takes.

        >>> assert not (await client.diagnosis.check_indexes()).findings
        """
        request = diagnosis_pb2.CheckIndexesRequest()
        return index_check_from_proto(await self._connection.call(self._stub.CheckIndexes, request, deadline))

    async def profile_steps(
        self,
        *,
        num_steps: int | None = None,
        timeout_seconds: float | None = None,
        with_trace: bool = False,
        deadline: float | None = None,
    ) -> ProfiledSteps:
        """Record the next steps, 20 unless said otherwise, with torch's profiler.

        Raises DeadlineExceededError when they do not come within `timeout_seconds`, 60 unless said otherwise.

        >>> print((await client.diagnosis.profile_steps(num_steps=10)).profile.copied_bytes)
        """
        request = diagnosis_pb2.ProfileStepsRequest(
            num_steps=num_steps, timeout_seconds=timeout_seconds, with_trace=with_trace
        )
        responses = self._connection.events(self._stub.ProfileSteps, request, lambda part: part, deadline)
        return profiled_steps_from_proto([part async for part in responses])

    async def measure_machine(
        self, *, num_rows: int | None = None, deadline: float | None = None
    ) -> MachineSpeed:
        """The speed of the worker's memory, and of attention over both layouts. No step runs meanwhile.

        >>> print((await client.diagnosis.measure_machine()).read_bytes_per_second)
        """
        request = diagnosis_pb2.MeasureMachineRequest(num_rows=num_rows)
        return machine_speed_from_proto(
            await self._connection.call(self._stub.MeasureMachine, request, deadline)
        )
