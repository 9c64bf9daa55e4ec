"""The line of a request that has ended, and the code it is counted under."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from prefixcache_worker.errors import QueueFullError
from prefixcache_worker.server.call_metadata import call_metadata
from prefixcache_worker.server.request_record import RequestRecord


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (asyncio.CancelledError(), "CANCELLED"),
        (grpc.aio.InternalError("the write that found the client gone"), "CANCELLED"),
        (QueueFullError("full"), "RESOURCE_EXHAUSTED"),
        (KeyError("bug"), "INTERNAL"),
    ],
    ids=repr,
)
def test_a_request_is_counted_once_under_whose_doing_its_end_was(error: BaseException, code: str):
    counted: list[tuple[str, str]] = []
    record = RequestRecord.begin(
        tenant="shop",
        method="Generate",
        request_id="7",
        call=call_metadata(()),
        clock=lambda: 0.0,
        count=lambda method, name: counted.append((method, name)),
    )
    with pytest.raises(type(error)), record.logged():
        raise error
    assert counted == [("Generate", code)]
