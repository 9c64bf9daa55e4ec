"""Every call has a least role, and callers without it are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from support.named_callers import as_caller, served_to_named
from support.rpc_methods import METHODS
from support.served_worker import ServedWorker
from support.tiny_loaded_model import loaded

from prefixcache.v1 import diagnosis_pb2, diagnosis_pb2_grpc
from prefixcache_worker.model.scripted_model import ScriptedModel
from prefixcache_worker.server.access.caller import Role

LEAST_ROLE = {
    "InferenceService": {
        "Generate": Role.USER,
        "Abort": Role.USER,
        "Tokenize": Role.USER,
        "Detokenize": Role.USER,
        "GetModelInfo": Role.USER,
    },
    "CacheService": {
        "CreatePrefix": Role.USER,
        "GetPrefix": Role.USER,
        "ListPrefixes": Role.USER,
        "UpdatePrefix": Role.USER,
        "DeletePrefix": Role.USER,
        "GetUsage": Role.USER,
        "Explain": Role.USER,
        "DumpTree": Role.USER,
        "GetStats": Role.ADMIN,
        "WatchEvents": Role.ADMIN,
        "Reset": Role.ADMIN,
        "Snapshot": Role.ADMIN,
        "Restore": Role.ADMIN,
    },
    "DiagnosisService": {
        "ListRequests": Role.USER,
        "GetSettings": Role.ADMIN,
        "GetLayout": Role.ADMIN,
        "WatchSteps": Role.ADMIN,
        "CheckIndexes": Role.ADMIN,
        "ProfileSteps": Role.ADMIN,
        "MeasureMachine": Role.ADMIN,
    },
}

OVER_AT_ONCE = {
    "WatchSteps": diagnosis_pb2.WatchStepsRequest(max_steps=0),
    "ProfileSteps": diagnosis_pb2.ProfileStepsRequest(num_steps=0),
    "MeasureMachine": diagnosis_pb2.MeasureMachineRequest(num_rows=0),
}
"""In place of empty messages, for calls that would wait for steps or take a while: refused for what they ask,
but only those who may ask."""


@pytest.fixture
async def worker() -> AsyncIterator[ServedWorker]:
    model = ScriptedModel([50], vocabulary_size=260, eos_token_id=2, context_length=256)
    async with served_to_named(loaded(model)) as running:
        yield running


def test_every_method_has_a_row() -> None:
    """A new call without one fails here."""
    rows = {(service, name) for service, methods in LEAST_ROLE.items() for name in methods}
    assert rows == {(method.containing_service.name, method.name) for method in METHODS}


async def status_of(worker: ServedWorker, method: MethodDescriptor, **caller: Any) -> grpc.StatusCode:
    """What an empty message is answered with; a stream is left after its first message."""
    stub = {
        "InferenceService": worker.inference,
        "CacheService": worker.cache,
        "DiagnosisService": diagnosis_pb2_grpc.DiagnosisServiceStub(worker.channel),
    }[method.containing_service.name]
    message = OVER_AT_ONCE.get(method.name, GetMessageClass(method.input_type)())
    call = getattr(stub, method.name)(message, **caller)
    try:
        if method.server_streaming:
            await call.read()
            if not call.done():
                return grpc.StatusCode.OK
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await call.code()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
async def test_callers_below_the_least_role_are_refused(
    worker: ServedWorker, method: MethodDescriptor
) -> None:
    service = method.containing_service.name
    least = LEAST_ROLE[service][method.name]
    unknown = await status_of(worker, method, timeout=30)
    told = {role: await status_of(worker, method, **as_caller("a", role)) for role in Role}
    refused = {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED}
    assert unknown is grpc.StatusCode.UNAUTHENTICATED
    assert {role for role in Role if told[role] is grpc.StatusCode.PERMISSION_DENIED} == {
        role for role in Role if role < least
    }
    assert not refused & {told[role] for role in Role if role >= least}
