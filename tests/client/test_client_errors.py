"""Failed calls: each gRPC status becomes its own error, with its details, in both clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from support.fake_worker import FakeWorker, abort, delta
from support.tcp_relay import tcp_relay

from prefixcache_client import (
    AlreadyExistsError,
    AsyncClient,
    CallCancelledError,
    Client,
    DeadlineExceededError,
    FailedPreconditionError,
    FieldViolation,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    PrefixCacheClientError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)

BAD_REQUEST = error_details_pb2.BadRequest(
    field_violations=[
        error_details_pb2.BadRequest.FieldViolation(
            field="sampling.temperature", description="must not be negative"
        ),
        error_details_pb2.BadRequest.FieldViolation(field="n", description="must be 1 to 64"),
    ]
)
RETRY_INFO = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=1, nanos=500_000_000))
ERROR_INFO = error_details_pb2.ErrorInfo(domain="prefixcache", reason="QUEUE_FULL")


def generate_sync(address: str, **options: Any) -> None:
    with Client(address) as client:
        client.generate("hi", **options)


def generate_async(address: str, **options: Any) -> None:
    async def generate() -> None:
        async with AsyncClient(address) as client:
            await client.generate("hi", **options)

    asyncio.run(generate())


@pytest.fixture(params=[generate_sync, generate_async], ids=["sync", "async"])
def generate(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`generate("hi")` through either client."""
    return request.param


def failing(code: grpc.StatusCode, message: str, *details: Message) -> Callable[..., Iterator[Any]]:
    def behaviour(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield delta("Hel", 5)
        abort(context, code, message, *details)

    return behaviour


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidArgumentError),
        (grpc.StatusCode.NOT_FOUND, NotFoundError),
        (grpc.StatusCode.FAILED_PRECONDITION, FailedPreconditionError),
        (grpc.StatusCode.ALREADY_EXISTS, AlreadyExistsError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ResourceExhaustedError),
        (grpc.StatusCode.UNAUTHENTICATED, UnauthenticatedError),
        (grpc.StatusCode.PERMISSION_DENIED, PermissionDeniedError),
        (grpc.StatusCode.UNAVAILABLE, UnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceededError),
        (grpc.StatusCode.CANCELLED, CallCancelledError),
        (grpc.StatusCode.UNIMPLEMENTED, UnimplementedError),
        (grpc.StatusCode.INTERNAL, InternalError),
        (grpc.StatusCode.UNKNOWN, InternalError),
        (grpc.StatusCode.DATA_LOSS, InternalError),
    ],
)
def test_each_status_becomes_its_error(
    worker: FakeWorker, generate: Callable[..., None], code: grpc.StatusCode, error: type[Exception]
) -> None:
    worker.generate = failing(code, "the sentence")

    with pytest.raises(PrefixCacheClientError) as caught:
        generate(worker.address)

    assert type(caught.value) is error
    if error is not DeadlineExceededError:
        assert "the sentence" in str(caught.value)
    assert isinstance(caught.value.__cause__, grpc.RpcError)


def test_field_violations_are_kept(worker: FakeWorker, generate: Callable[..., None]) -> None:
    worker.generate = failing(
        grpc.StatusCode.INVALID_ARGUMENT, "two fields are wrong", ERROR_INFO, BAD_REQUEST
    )

    with pytest.raises(InvalidArgumentError, match="two fields are wrong") as caught:
        generate(worker.address)

    assert caught.value.field_violations == (
        FieldViolation("sampling.temperature", "must not be negative"),
        FieldViolation("n", "must be 1 to 64"),
    )


@pytest.mark.parametrize(("details", "seconds"), [((ERROR_INFO, RETRY_INFO), 1.5), ((ERROR_INFO,), None)])
def test_the_time_to_retry_is_kept(
    worker: FakeWorker, generate: Callable[..., None], details: tuple[Message, ...], seconds: float | None
) -> None:
    worker.generate = failing(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", *details)

    with pytest.raises(ResourceExhaustedError, match="the queue is full") as caught:
        generate(worker.address)

    assert caught.value.retry_after_seconds == seconds


def test_details_that_cannot_be_read_do_not_hide_the_status(
    worker: FakeWorker, generate: Callable[..., None]
) -> None:
    def behaviour(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        context.set_trailing_metadata((("grpc-status-details-bin", b"\xff\xff\xff"),))
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the sentence")
        yield delta("never")

    worker.generate = behaviour

    with pytest.raises(InvalidArgumentError, match="the sentence") as caught:
        generate(worker.address)

    assert caught.value.field_violations == ()


def test_nobody_listening_is_said_with_the_address(generate: Callable[..., None]) -> None:
    with FakeWorker() as gone:
        address = gone.address

    with pytest.raises(UnavailableError) as caught:
        generate(address)

    assert str(caught.value) == (
        f"no worker answers at {address}: start one with `prefixcache serve`, or give another address"
    )


def test_a_host_that_does_not_exist_is_said_in_the_same_words(generate: Callable[..., None]) -> None:
    with pytest.raises(UnavailableError, match=r"^no worker answers at no\.\.host:50051: start one"):
        generate("no..host:50051")


async def test_a_worker_that_goes_away_in_the_middle_is_said(
    worker: FakeWorker, generate: Callable[..., None]
) -> None:
    loop = asyncio.get_running_loop()
    async with tcp_relay(worker.address) as relay:

        def torn(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            yield delta("Hel", 5)
            loop.call_soon_threadsafe(relay.reset)
            worker.cancelled.wait(60)

        worker.generate = torn

        with pytest.raises(UnavailableError, match="the worker went away before the answer was complete"):
            await asyncio.to_thread(generate, relay.address)


def test_a_call_ends_at_its_deadline(worker: FakeWorker, generate: Callable[..., None]) -> None:
    def behaviour(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield delta("Hel", 5)
        worker.cancelled.wait(60)

    worker.generate = behaviour

    with pytest.raises(DeadlineExceededError, match="the deadline passed"):
        generate(worker.address, deadline=0.2)

    assert worker.cancelled.wait(60)
