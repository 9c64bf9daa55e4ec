"""From errors to what an HTTP client sees: the one table of gRPC statuses, in HTTP's words."""

from __future__ import annotations

import logging
from typing import NamedTuple

import grpc
from google.rpc import error_details_pb2
from pydantic import ValidationError

from prefixcache_worker.errors import InvalidRequestError, WorkerError
from prefixcache_worker.server.http.objects import ErrorAnswer, ErrorObject
from prefixcache_worker.server.status import STATUS_BY_ERROR, status_from_error

logger = logging.getLogger(__name__)


class HttpRow(NamedTuple):
    """How a gRPC status looks over HTTP."""

    status: int
    type: str
    """`error.type`, in OpenAI's words."""


HTTP_BY_CODE: dict[grpc.StatusCode, HttpRow] = {
    grpc.StatusCode.INVALID_ARGUMENT: HttpRow(400, "invalid_request_error"),
    grpc.StatusCode.OUT_OF_RANGE: HttpRow(400, "invalid_request_error"),
    grpc.StatusCode.FAILED_PRECONDITION: HttpRow(400, "invalid_request_error"),
    grpc.StatusCode.UNAUTHENTICATED: HttpRow(401, "authentication_error"),
    grpc.StatusCode.PERMISSION_DENIED: HttpRow(403, "permission_error"),
    grpc.StatusCode.NOT_FOUND: HttpRow(404, "not_found_error"),
    grpc.StatusCode.ALREADY_EXISTS: HttpRow(409, "conflict_error"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: HttpRow(429, "rate_limit_error"),
    grpc.StatusCode.CANCELLED: HttpRow(499, "cancelled_error"),
    grpc.StatusCode.INTERNAL: HttpRow(500, "server_error"),
    grpc.StatusCode.UNIMPLEMENTED: HttpRow(501, "server_error"),
    grpc.StatusCode.UNAVAILABLE: HttpRow(503, "server_error"),
    grpc.StatusCode.DEADLINE_EXCEEDED: HttpRow(504, "server_error"),
}
"""Every code that `STATUS_BY_ERROR` and the checks of messages use; another one is our bug."""

_PLAIN = ("extra_forbidden", "missing")
_CODE_BY_NUMBER = {code.value[0]: code for code in HTTP_BY_CODE}


class HttpError(WorkerError):
    """A request that is wrong as HTTP, before anything in it is looked at."""

    def __init__(
        self,
        status: int,
        code: str,
        sentence: str,
        *,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers or {}


class ErrorResponse(NamedTuple):
    """Status, headers and body of a refusal."""

    status: int
    headers: dict[str, str]
    body: ErrorAnswer


def response_from_error(error: Exception) -> ErrorResponse:
    """What an error looks like. One that is outside the tables is logged, and shows nothing of itself."""
    if isinstance(error, HttpError):
        described = ErrorObject(
            message=str(error), type="invalid_request_error", param=error.param, code=error.code
        )
        return ErrorResponse(error.status, error.headers, ErrorAnswer(error=described))
    if not isinstance(error, tuple(STATUS_BY_ERROR)):
        logger.error("unexpected error in a call", exc_info=error)
    status = status_from_error(error)
    row = HTTP_BY_CODE[_CODE_BY_NUMBER[status.code]]
    headers: dict[str, str] = {}
    reason: str | None = None
    for packed in status.details:
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if packed.Unpack(info):
            reason = info.reason.lower()
        elif packed.Unpack(retry):
            headers["retry-after"] = str(retry.retry_delay.seconds + (retry.retry_delay.nanos > 0))
    if row.status == 401:
        headers["www-authenticate"] = "Bearer"
    param = error.field_name if isinstance(error, InvalidRequestError) else None
    described = ErrorObject(message=status.message, type=row.type, param=param, code=reason)
    return ErrorResponse(row.status, headers, ErrorAnswer(error=described))


def invalid_body(error: ValidationError, body: object) -> InvalidRequestError:
    """The first thing that is wrong with a body, by the name that the field has in it."""
    paths = [_path_in(body, found["loc"]) for found in error.errors()]
    first = error.errors()[0]
    # Only the alternatives of a union fail at one place, or at a place and within it.
    inside = (paths[0], f"{paths[0]}.", f"{paths[0]}[")
    num_inside = sum(path == inside[0] or path.startswith(inside[1:]) for path in paths)
    if num_inside > 1 and first["type"] not in _PLAIN:
        return InvalidRequestError(paths[0], "is in none of the forms that this field may have")
    if first["type"] == "extra_forbidden":
        return InvalidRequestError(paths[0], "is not a field that this server knows")
    if first["type"] == "missing":
        return InvalidRequestError(paths[0], "is missing")
    return InvalidRequestError(paths[0], first["msg"][:1].lower() + first["msg"][1:])


def _path_in(body: object, location: tuple[int | str, ...]) -> str:
    """Where in the body an error is. Locations also name the alternatives of unions, which no body has."""
    path = ""
    for step in location:
        if isinstance(body, dict) and isinstance(step, str) and step in body:
            path, body = f"{path}.{step}", body[step]
        elif isinstance(body, list) and isinstance(step, int) and step < len(body):
            path, body = f"{path}[{step}]", body[step]
        elif step is location[-1] and isinstance(body, dict):
            path = f"{path}.{step}"  # what is missing
    return path.removeprefix(".") or "body"
