"""Whatever comes over the wire is answered with a documented status, and the worker goes on."""

from __future__ import annotations

import grpc
from support.fuzzed_service import fuzz


def test_hostile_messages_get_documented_statuses_and_leave_nothing_behind() -> None:
    """`make soak` does the same for longer."""
    answers = fuzz(250)
    assert answers[grpc.StatusCode.OK]
    assert answers[grpc.StatusCode.INVALID_ARGUMENT]
    assert answers[grpc.StatusCode.PERMISSION_DENIED]
