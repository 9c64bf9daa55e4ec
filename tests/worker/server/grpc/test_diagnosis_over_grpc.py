"""Looking into a running worker over real gRPC, by both clients."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator

import pytest
from support.served_worker import GatedModel, ServedWorker, greedy_request, served
from support.tiny_loaded_model import loaded
from support.tiny_model import tiny_decoder

from prefixcache.v1 import diagnosis_pb2, diagnosis_pb2_grpc
from prefixcache_client import (
    AsyncClient,
    Client,
    DeadlineExceededError,
    InvalidArgumentError,
    StepFault,
    StepRecord,
    UnavailableError,
)
from prefixcache_worker.diagnosis import diagnosis, machine_speed
from prefixcache_worker.diagnosis.step_record import StepFault as WorkerFault
from prefixcache_worker.server.grpc import diagnosis_servicer

PROMPT = range(5, 50)


@pytest.fixture
async def worker() -> AsyncIterator[ServedWorker]:
    async with served(loaded(tiny_decoder()), kv_dtype="int8") as running:
        yield running


@pytest.fixture
async def client(worker: ServedWorker) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(worker.address, deadline=30) as client:
        yield client


async def watched(client: AsyncClient, worker: ServedWorker, num_tokens: int) -> list[StepRecord]:
    """The records of one answer's steps."""
    steps = client.diagnosis.watch_steps(max_steps=num_tokens)

    async def read() -> list[StepRecord]:
        return [step async for step in steps]

    reading = asyncio.create_task(read())
    await client.health()  # the reader's call begins meanwhile, and so before the next one
    await worker.answer(greedy_request(PROMPT, num_tokens))
    return await reading


async def test_settings_are_those_of_the_flags_and_the_machine(client: AsyncClient) -> None:
    told = await client.diagnosis.settings()
    assert told.settings["kv-dtype"] == "int8"
    assert told.settings["kv-blocks"] == "64"
    assert told.settings["block-size"] == "16"
    assert told.settings["open-access"] == "false"
    assert "kv-memory" not in told.settings
    assert told.machine.keys() >= {"release", "python", "torch", "cpu", "cores", "threads", "kv_layout"}
    assert (told.machine["device"], told.machine["kv_dtype"]) == ("cpu", "int8/token-head")
    assert told.machine["attention"] in ("native", "torch")
    assert int(told.machine["memory_bytes"]) > 1 << 20


async def test_the_layout_is_that_of_the_tensors(client: AsyncClient, worker: ServedWorker) -> None:
    layout = await client.diagnosis.layout()
    store = worker.worker.diagnosis.store
    assert [tensor.name for tensor in layout.tensors] == ["keys", "keys.scales", "values", "values.scales"]
    for place, tensor in zip(layout.tensors, store.tensors(), strict=True):
        assert place.address == tensor.data_ptr()
        assert place.strides[: tensor.ndim] == tuple(stride * tensor.itemsize for stride in tensor.stride())
        assert place.size[: tensor.ndim] == tensor.shape
    assert (layout.order, layout.tensors[0].dtype, layout.tensors[1].element_bytes) == (
        "layer-first",
        "int8",
        2,
    )
    assert layout.token_bytes == 2 * 2 * 2 * (16 + 2)  # keys and values, layers, heads, a row and its scale


async def test_every_step_of_an_answer_is_told(client: AsyncClient, worker: ServedWorker) -> None:
    steps = await watched(client, worker, 4)
    assert [step.number for step in steps] == [1, 2, 3, 4]
    assert [step.rows_needed for step in steps] == [45, 46, 47, 48]
    assert [step.rows_read for step in steps] == [45, 46, 47, 48]
    assert [(step.num_tokens, step.num_prompt_tokens) for step in steps] == [(45, 45), (1, 0), (1, 0), (1, 0)]
    assert steps[-1].live_blocks == 0
    assert all(step.seconds >= step.plan_seconds + step.model_seconds > 0 for step in steps)
    assert not any(step.findings or step.num_lost for step in steps)


async def test_a_finding_arrives_as_it_is(client: AsyncClient, worker: ServedWorker) -> None:
    engine = worker.worker.engine_loop._engine
    plan = engine._planner.plan
    engine._planner.plan = lambda spans: tuple(each._replace(items=each.items * 2) for each in plan(spans))
    (step,) = await watched(client, worker, 1)
    (finding,) = step.findings
    assert (finding.fault, finding.expected, finding.found) == (StepFault.ROWS_READ_MORE, 45, 90)
    assert finding.sentence == f"{finding.request_id} has 45 rows to read, and 90 are read"


async def test_no_step_is_missed_once_the_synchronous_client_has_the_stream(
    worker: ServedWorker,
) -> None:
    with Client(worker.address, deadline=30) as client:
        steps = await asyncio.to_thread(client.diagnosis.watch_steps, max_steps=3)
        await worker.answer(greedy_request(PROMPT, 3))
        assert [step.number for step in await asyncio.to_thread(list, steps)] == [1, 2, 3]


async def test_nobody_listens_when_the_watcher_has_gone() -> None:
    """It leaves in the middle of a stream, and the engine goes on unwatched."""
    model = GatedModel(tiny_decoder())
    async with served(loaded(model)) as worker:
        store = worker.worker.diagnosis.store
        call = diagnosis_pb2_grpc.DiagnosisServiceStub(worker.channel).WatchSteps(
            diagnosis_pb2.WatchStepsRequest()
        )
        await call.initial_metadata()
        answering = asyncio.create_task(worker.answer(greedy_request(PROMPT, 5)))
        model.allow(1)
        assert (await call.read()).number == 1
        assert store.listener is not None
        call.cancel()
        model.allow(4)
        await answering
        async with asyncio.timeout(30):
            while store.listener is not None:
                await worker.health()


async def test_a_stop_ends_a_watch(worker: ServedWorker) -> None:
    with Client(worker.address, deadline=30) as client:
        steps = await asyncio.to_thread(client.diagnosis.watch_steps)
        reading = asyncio.create_task(asyncio.to_thread(list, steps))
        await worker.service.stop(drain_seconds=0)
        with pytest.raises(UnavailableError):
            await reading


async def test_the_indexes_are_proved(client: AsyncClient, worker: ServedWorker) -> None:
    await worker.answer(greedy_request(PROMPT, 4))
    check = await client.diagnosis.check_indexes()
    assert check.findings == ()
    assert (check.num_nodes, check.num_blocks) == (2, 80)  # whole blocks and a tail; with headroom
    worker.worker.engine_loop._engine.cache._pool.retain([0])
    assert (
        "1 blocks have another number of references" in (await client.diagnosis.check_indexes()).findings[0]
    )


@pytest.mark.parametrize("with_trace", [True, False])
async def test_a_profile_comes_with_its_trace(
    client: AsyncClient, worker: ServedWorker, with_trace: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis_servicer, "TRACE_PIECE_BYTES", 5000)
    profiling = asyncio.create_task(client.diagnosis.profile_steps(num_steps=3, with_trace=with_trace))
    await client.health()
    while not worker.worker.engine_loop._engine.watchers._watchers:
        await client.health()
    await worker.answer(greedy_request(PROMPT, 5))
    profile, trace = await profiling
    assert (profile.num_steps, profile.num_tokens) == (3, 47)
    assert profile.kv_bytes == (45 + 46 + 47) * 2 * 2 * 2 * (16 + 2)
    assert profile.weight_bytes > 3 * 4 * 1000 * 96  # the output alone
    assert 0 < profile.attention_seconds + profile.product_seconds < profile.seconds
    assert profile.copied_bytes > profile.filled_bytes > 0
    assert 0 < len(profile.operations) <= 20
    if with_trace:
        assert len(trace) > 2 * 5000
        events = json.loads(gzip.decompress(trace))["traceEvents"]
        assert sum(event["name"] == "prefixcache::step" for event in events) >= 3
    else:
        assert trace == b""


async def test_a_profile_of_an_idle_worker_is_given_up(client: AsyncClient, worker: ServedWorker) -> None:
    with pytest.raises(DeadlineExceededError):
        await client.diagnosis.profile_steps(num_steps=3, timeout_seconds=0.05)
    assert worker.worker.engine_loop._engine.watchers._watchers == []


async def test_the_machine_is_measured(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_speed, "READ_BYTES", 1 << 20)
    speed = await client.diagnosis.measure_machine(num_rows=16)
    assert speed.read_bytes_per_second > 0
    assert [layout.order for layout in speed.layouts] == ["layer-first", "head-first"]
    assert all(layout.seconds > 0 for layout in speed.layouts)


async def test_who_gives_up_waiting_to_measure_costs_the_engine_nothing(
    worker: ServedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed while the machine is measured: an impatient caller must not stop the engine too."""
    measured: list[int] = []
    is_busy, may_go_on = threading.Event(), threading.Event()

    def measure(store: object, attention: object, *, num_rows: int) -> machine_speed.MachineSpeed:
        measured.append(num_rows)
        is_busy.set()
        assert may_go_on.wait(30)
        return machine_speed.MachineSpeed(1.0, {})

    monkeypatch.setattr(diagnosis, "measure_machine", measure)
    looks = worker.worker.diagnosis
    first = asyncio.create_task(looks.measure_machine(16))
    await asyncio.to_thread(is_busy.wait, 30)
    impatient = [asyncio.create_task(looks.measure_machine(num_rows)) for num_rows in (17, 18, 19)]
    await asyncio.sleep(0)
    for task in impatient:
        task.cancel()
    may_go_on.set()
    await first
    await asyncio.gather(*impatient, return_exceptions=True)
    await worker.worker.engine_loop.call(lambda engine: None)
    assert measured == [16]


async def test_bounds_are_named(client: AsyncClient) -> None:
    async def steps(max_steps: int) -> None:
        async for _ in client.diagnosis.watch_steps(max_steps=max_steps):
            pass

    for call, field in (
        (steps(0), "max_steps"),
        (steps(100_001), "max_steps"),
        (client.diagnosis.profile_steps(num_steps=0), "num_steps"),
        (client.diagnosis.profile_steps(num_steps=201), "num_steps"),
        (client.diagnosis.profile_steps(timeout_seconds=0), "timeout_seconds"),
        (client.diagnosis.profile_steps(timeout_seconds=601), "timeout_seconds"),
        (client.diagnosis.measure_machine(num_rows=15), "num_rows"),
        (client.diagnosis.measure_machine(num_rows=32_769), "num_rows"),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            await call
        assert [violation.field for violation in caught.value.field_violations] == [field]


def test_every_fault_has_a_number() -> None:
    """A new one without a message fails here."""
    names = {name.removeprefix("STEP_FAULT_") for name in diagnosis_pb2.StepFault.DESCRIPTOR.values_by_name}
    assert {fault.name for fault in WorkerFault} == names - {"UNSPECIFIED"}
    assert {fault.name for fault in StepFault} == names - {"UNSPECIFIED"} | {"UNKNOWN"}
