"""Every error a call can end with, and the one map from gRPC statuses to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

_DETAILS_KEY = "grpc-status-details-bin"
_NOT_REACHED = ("failed to connect", "errors resolving", "DNS resolution failed")
"""How gRPC begins its own sentence when no connection came about."""
_REFUSED_AFTER_ANSWER = ("handshake failed", "verification check failed", "Socket closed")
"""What that sentence has when somebody listens, but the two sides do not agree on encryption."""


class PrefixCacheClientError(Exception):
    """Base of all errors below; itself raised for an answer that breaks the protocol.

    The message is one sentence for the person who made the call.

        PrefixCacheClientError
        ├── InvalidArgumentError      a field is out of its bounds: `field_violations`
        ├── NotFoundError
        ├── AlreadyExistsError        a live request has this id
        ├── ResourceExhaustedError    queue or pool full: `retry_after_seconds`
        ├── UnauthenticatedError
        ├── PermissionDeniedError
        ├── UnavailableError          nobody listens, or the worker is draining or gone
        ├── DeadlineExceededError
        ├── CallCancelledError
        ├── OutOfRangeError           the worker no longer has the events asked for
        ├── FailedPreconditionError   the worker is not set up for this
        ├── UnimplementedError        the worker is older than this client
        └── InternalError             a fault of the worker
    """


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field that the worker refused, named by its proto path, such as `sampling.temperature`."""

    field: str
    description: str


class InvalidArgumentError(PrefixCacheClientError):
    """The worker refused the request as it stands."""

    def __init__(self, message: str, field_violations: tuple[FieldViolation, ...] = ()) -> None:
        super().__init__(message)
        self.field_violations = field_violations


class NotFoundError(PrefixCacheClientError):
    """What the request names does not exist."""


class AlreadyExistsError(PrefixCacheClientError):
    """A live request already has this id."""


class ResourceExhaustedError(PrefixCacheClientError):
    """The queue or the pool is full, or a message is too large."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        """When to try again, if the worker said so."""


class UnauthenticatedError(PrefixCacheClientError):
    """The worker does not accept the credential."""


class PermissionDeniedError(PrefixCacheClientError):
    """The credential does not allow this."""


class FailedPreconditionError(PrefixCacheClientError):
    """The worker is not in a state for this; the message says what is missing."""


class UnavailableError(PrefixCacheClientError):
    """No worker answers at the address, it is draining, or it went away before the answer was complete."""


class DeadlineExceededError(PrefixCacheClientError):
    """The deadline passed before the answer was complete."""


class CallCancelledError(PrefixCacheClientError):
    """The call was cancelled."""


class OutOfRangeError(PrefixCacheClientError):
    """The worker does not have the events from this number on (any more); watch from the beginning."""


class UnimplementedError(PrefixCacheClientError):
    """The worker does not know this call."""


class InternalError(PrefixCacheClientError):
    """Something failed inside the worker; its log says what."""


_ERROR_BY_CODE: dict[grpc.StatusCode, type[PrefixCacheClientError]] = {
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.CANCELLED: CallCancelledError,
    grpc.StatusCode.OUT_OF_RANGE: OutOfRangeError,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPreconditionError,
    grpc.StatusCode.UNIMPLEMENTED: UnimplementedError,
}


def error_from_rpc(error: grpc.RpcError, *, address: str) -> PrefixCacheClientError:
    """The client's error for a failed call to `address`."""
    code, message, details = error.code(), error.details() or "", _rich_details(error)
    match code:
        case grpc.StatusCode.INVALID_ARGUMENT:
            return InvalidArgumentError(message, _field_violations(details))
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return ResourceExhaustedError(message, _retry_after_seconds(details))
        case grpc.StatusCode.UNAVAILABLE if details.code:  # in the worker's own words
            return UnavailableError(f"{address}: {message}")
        case grpc.StatusCode.UNAVAILABLE if message.startswith(_NOT_REACHED) and any(
            words in message for words in _REFUSED_AFTER_ANSWER
        ):
            return UnavailableError(
                f"{address}: no connection, since worker and client differ about TLS: a worker with it needs "
                f"--tls-ca, one with --tls-client-ca a certificate too, one without it neither ({message})"
            )
        case grpc.StatusCode.UNAVAILABLE if message.startswith(_NOT_REACHED):
            return UnavailableError(
                f"no worker answers at {address}: start one with `prefixcache serve`, or give another address"
            )
        case grpc.StatusCode.UNAVAILABLE:
            return UnavailableError(
                f"{address}: the worker went away before the answer was complete ({message})"
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceededError(f"{address}: the deadline passed before the answer was complete")
        case _:
            return _ERROR_BY_CODE.get(code, InternalError)(message or f"{address}: {code.name}")


def _rich_details(error: grpc.RpcError) -> status_pb2.Status:
    """The google.rpc.Status that came with the error; empty when none came."""
    metadata: Any = error.trailing_metadata() or ()  # pairs, from either kind of channel
    for key, value in metadata:
        if key == _DETAILS_KEY:
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:  # only an extra: the status itself still tells what happened
                break
    return status_pb2.Status()


def _field_violations(details: status_pb2.Status) -> tuple[FieldViolation, ...]:
    bad_request = error_details_pb2.BadRequest()
    return tuple(
        FieldViolation(violation.field, violation.description)
        for detail in details.details
        if detail.Unpack(bad_request)
        for violation in bad_request.field_violations
    )


def _retry_after_seconds(details: status_pb2.Status) -> float | None:
    retry_info = error_details_pb2.RetryInfo()
    for detail in details.details:
        if detail.Unpack(retry_info):
            return float(retry_info.retry_delay.ToTimedelta().total_seconds())
    return None
