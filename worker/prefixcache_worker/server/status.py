"""The one table from errors to gRPC statuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import ceil
from typing import Any, NamedTuple

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from prefixcache import EventGapError, NotPublisherError, OutOfBlocksError, QuotaExceededError
from prefixcache_worker.errors import (
    AbortedError,
    CacheNotEmptyError,
    DeadlineExceededError,
    DuplicateRequestError,
    EngineStoppedError,
    InvalidRequestError,
    NotFiniteError,
    NotFoundError,
    PermissionDeniedError,
    QueueFullError,
    RateLimitedError,
    SchemeError,
    SlowReaderError,
    SnapshotFailedError,
    SnapshotsOffError,
    TooManyRequestsError,
    UnauthenticatedError,
)

ERROR_DOMAIN = "prefixcache"
RETRY_SECONDS = 1
"""What a client is told to wait when the worker is full: about the time in which a running request ends."""

logger = logging.getLogger(__name__)


class StatusRow(NamedTuple):
    """How one kind of error looks to a client."""

    code: grpc.StatusCode
    reason: str
    """`ErrorInfo.reason`: for programs, stable between releases."""
    is_quota: bool = False
    """Whether a bound of the error's `tenant` was met: then a QuotaFailure names it."""
    sentence: str | None = None
    """What is said instead of the error's own sentence, whose figures are of all tenants together."""


STATUS_BY_ERROR: dict[type[Exception], StatusRow] = {
    InvalidRequestError: StatusRow(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
    DuplicateRequestError: StatusRow(grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST"),
    UnauthenticatedError: StatusRow(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"),
    PermissionDeniedError: StatusRow(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"),
    NotFoundError: StatusRow(grpc.StatusCode.NOT_FOUND, "NOT_FOUND"),
    AbortedError: StatusRow(grpc.StatusCode.CANCELLED, "ABORTED"),
    DeadlineExceededError: StatusRow(grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
    SlowReaderError: StatusRow(grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER"),
    QueueFullError: StatusRow(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "QUEUE_FULL",
        sentence="the worker has as many requests, waiting prompt tokens or large messages as it takes; "
        "try again later",
    ),
    RateLimitedError: StatusRow(grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED", is_quota=True),
    TooManyRequestsError: StatusRow(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_REQUESTS", is_quota=True),
    OutOfBlocksError: StatusRow(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "OUT_OF_BLOCKS",
        sentence="the KV pool has no room for this request, whoever gives way; send a shorter prompt, ask "
        "for fewer answers, or try again later",
    ),
    QuotaExceededError: StatusRow(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", is_quota=True),
    NotPublisherError: StatusRow(grpc.StatusCode.PERMISSION_DENIED, "NOT_PUBLISHER"),
    SnapshotsOffError: StatusRow(grpc.StatusCode.FAILED_PRECONDITION, "SNAPSHOTS_OFF"),
    CacheNotEmptyError: StatusRow(grpc.StatusCode.FAILED_PRECONDITION, "CACHE_NOT_EMPTY"),
    SnapshotFailedError: StatusRow(grpc.StatusCode.FAILED_PRECONDITION, "SNAPSHOT_FAILED"),
    NotFiniteError: StatusRow(grpc.StatusCode.INTERNAL, "NOT_FINITE"),
    SchemeError: StatusRow(grpc.StatusCode.FAILED_PRECONDITION, "SCHEME"),
    EventGapError: StatusRow(grpc.StatusCode.OUT_OF_RANGE, "EVENTS_GONE"),
    EngineStoppedError: StatusRow(grpc.StatusCode.UNAVAILABLE, "ENGINE_STOPPED"),
}
_UNEXPECTED = StatusRow(grpc.StatusCode.INTERNAL, "INTERNAL_ERROR")


def row_of(error: Exception) -> StatusRow:
    """How an error looks to a client."""
    return next((row for kind, row in STATUS_BY_ERROR.items() if isinstance(error, kind)), _UNEXPECTED)


def status_from_error(error: Exception) -> status_pb2.Status:
    """Code, sentence and details of an error. An error outside the table shows nothing of itself."""
    row = row_of(error)
    sentence = row.sentence or str(error)
    if row is _UNEXPECTED:
        sentence = "the worker failed at this request; its log says where"
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=row.reason, domain=ERROR_DOMAIN)]
    if isinstance(error, InvalidRequestError):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field_name, description=error.description
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if row.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(ceil(retry_seconds(error) * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if row.is_quota:
        quota = error_details_pb2.QuotaFailure()
        quota.violations.add(subject=f"tenant:{error.tenant}", description=sentence)  # type: ignore[attr-defined]
        details.append(quota)
    return status_pb2.Status(code=row.code.value[0], message=sentence, details=map(_packed, details))


def retry_seconds(error: Exception) -> float:
    """How long to wait before trying again after an error for want of room."""
    return error.retry_seconds if isinstance(error, RateLimitedError) else RETRY_SECONDS


@asynccontextmanager
async def errors_as_status(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Answer the call with the status of whatever its body raises. A cancelled call passes through, and one
    that has its status."""
    try:
        try:
            yield
        except (grpc.aio.AbortError, grpc.aio.InternalError):
            raise
        except Exception as error:
            if not isinstance(error, tuple(STATUS_BY_ERROR)):
                logger.exception("unexpected error in a call")
            await context.abort_with_status(rpc_status.to_status(status_from_error(error)))
    except grpc.aio.InternalError as error:
        # A write failed: the client has gone, and gRPC was about to cancel the call for that.
        raise asyncio.CancelledError from error


def _packed(detail: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed
