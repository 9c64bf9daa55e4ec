"""Which status a client sees for which error."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from unittest.mock import AsyncMock

import grpc
import pytest
from google.rpc import error_details_pb2

from prefixcache import EventGapError, NotPublisherError, OutOfBlocksError, QuotaExceededError
from prefixcache_worker.errors import (
    DuplicateRequestError,
    EngineStoppedError,
    InvalidRequestError,
    QueueFullError,
    RateLimitedError,
    SchemeError,
    TooManyRequestsError,
)
from prefixcache_worker.server.status import (
    STATUS_BY_ERROR,
    errors_as_status,
    row_of,
    status_from_error,
)


def details_of(error: Exception) -> dict[str, object]:
    kinds = (
        error_details_pb2.ErrorInfo,
        error_details_pb2.BadRequest,
        error_details_pb2.RetryInfo,
        error_details_pb2.QuotaFailure,
    )
    found: dict[str, object] = {}
    for packed in status_from_error(error).details:
        kind = next(kind for kind in kinds if packed.Is(kind.DESCRIPTOR))
        detail = kind()
        packed.Unpack(detail)
        found[kind.__name__] = detail
    return found


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (InvalidRequestError("n", "0 is bad"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (DuplicateRequestError("twice"), grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST"),
        (QueueFullError("full"), grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL"),
        (
            OutOfBlocksError(num_needed=3, num_free=1, num_idle=1),
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "OUT_OF_BLOCKS",
        ),
        (
            QuotaExceededError(tenant="t", num_needed=3, ceiling_blocks=4, num_held=4, num_idle=0),
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "QUOTA_EXCEEDED",
        ),
        (
            RateLimitedError(tenant="t", requests_per_minute=6, retry_seconds=2.25),
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "RATE_LIMITED",
        ),
        (
            TooManyRequestsError(tenant="t", max_live_requests=3),
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "TOO_MANY_REQUESTS",
        ),
        (NotPublisherError("no"), grpc.StatusCode.PERMISSION_DENIED, "NOT_PUBLISHER"),
        (SchemeError("no"), grpc.StatusCode.FAILED_PRECONDITION, "SCHEME"),
        (
            EventGapError(wanted=3, oldest=5, next_sequence_number=9),
            grpc.StatusCode.OUT_OF_RANGE,
            "EVENTS_GONE",
        ),
        (EngineStoppedError("stopping"), grpc.StatusCode.UNAVAILABLE, "ENGINE_STOPPED"),
    ],
)
def test_a_known_error_has_its_code_sentence_and_reason(error: Exception, code: grpc.StatusCode, reason: str):
    status = status_from_error(error)
    info = details_of(error)["ErrorInfo"]
    sentence = STATUS_BY_ERROR[type(error)].sentence or str(error)
    assert (status.code, status.message) == (code.value[0], sentence)
    assert info == error_details_pb2.ErrorInfo(reason=reason, domain="prefixcache")


def test_the_operators_table_has_every_reason_with_its_code():
    page = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([A-Z_]+) \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)
    reasons = [(row.reason, row.code.name) for row in (*STATUS_BY_ERROR.values(), row_of(KeyError("bug")))]
    assert sorted(rows) == sorted(set(reasons))


def test_an_invalid_request_names_its_field_in_a_bad_request():
    bad_request = details_of(InvalidRequestError("sampling.top_p", "2 is not in (0, 1]"))["BadRequest"]
    assert isinstance(bad_request, error_details_pb2.BadRequest)
    assert [(v.field, v.description) for v in bad_request.field_violations] == [
        ("sampling.top_p", "2 is not in (0, 1]")
    ]


def test_only_a_full_worker_says_when_to_try_again():
    assert details_of(QueueFullError("full"))["RetryInfo"].retry_delay.seconds == 1
    assert "RetryInfo" not in details_of(EngineStoppedError("stopping"))
    assert "RetryInfo" not in details_of(DuplicateRequestError("twice"))


def test_a_rate_says_how_long_the_wait_really_is():
    retry = details_of(RateLimitedError(tenant="t", requests_per_minute=6, retry_seconds=2.25))["RetryInfo"]
    assert retry.retry_delay.ToTimedelta().total_seconds() == 2.25


@pytest.mark.parametrize(
    "error",
    [
        RateLimitedError(tenant="t", requests_per_minute=6, retry_seconds=2.25),
        TooManyRequestsError(tenant="t", max_live_requests=3),
        QuotaExceededError(tenant="t", num_needed=3, ceiling_blocks=4, num_held=4, num_idle=0),
    ],
)
def test_a_tenants_bound_is_named_in_a_quota_failure(error: Exception):
    [violation] = details_of(error)["QuotaFailure"].violations
    assert (violation.subject, violation.description) == ("tenant:t", str(error))


def test_a_bound_of_all_is_nobodys_quota():
    assert "QuotaFailure" not in details_of(QueueFullError("full"))


async def test_an_unexpected_error_is_logged_with_its_traceback_and_not_shown(
    caplog: pytest.LogCaptureFixture,
):
    context = AsyncMock(spec=grpc.aio.ServicerContext)
    with caplog.at_level(logging.ERROR):
        async with errors_as_status(context):
            raise ZeroDivisionError("secret detail")

    [status] = context.abort_with_status.await_args.args
    assert status.code is grpc.StatusCode.INTERNAL
    assert "secret detail" not in status.details
    assert "ZeroDivisionError: secret detail" in caplog.text


async def test_a_known_error_is_not_logged(caplog: pytest.LogCaptureFixture):
    context = AsyncMock(spec=grpc.aio.ServicerContext)
    async with errors_as_status(context):
        raise QueueFullError("full")
    [status] = context.abort_with_status.await_args.args
    assert status.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not caplog.records


@pytest.mark.parametrize(
    "error",
    [
        QueueFullError("4711 requests are running"),
        OutOfBlocksError(num_needed=4711, num_free=1, num_idle=1),
    ],
)
def test_figures_of_all_tenants_together_stay_in_the_worker(error: Exception) -> None:
    status = status_from_error(error)
    assert not any(character.isdigit() for character in status.message)
    assert b"4711" not in status.SerializeToString()
