"""Every bound on the calls that look into the worker."""

from __future__ import annotations

from typing import NamedTuple

from prefixcache.v1 import diagnosis_pb2
from prefixcache_worker.server.validation.bounds import checked_number, given

MAX_WATCHED_STEPS = 100_000
MAX_PROFILED_STEPS = 200
MAX_PROFILE_SECONDS = 600.0
MIN_MEASURED_ROWS, MAX_MEASURED_ROWS = 16, 32_768


def max_steps_from_proto(message: diagnosis_pb2.WatchStepsRequest) -> int | None:
    """How many steps are to be watched; None: all."""
    if not message.HasField("max_steps"):
        return None
    return int(checked_number(message.max_steps, "max_steps", 1, MAX_WATCHED_STEPS))


class ProfileOrder(NamedTuple):
    """What is to be profiled."""

    num_steps: int
    timeout_seconds: float


def profile_order_from_proto(message: diagnosis_pb2.ProfileStepsRequest) -> ProfileOrder:
    """How much to record, and how long to wait for it."""
    num_steps, seconds = given(message, "num_steps", 20), given(message, "timeout_seconds", 60.0)
    return ProfileOrder(
        int(checked_number(num_steps, "num_steps", 1, MAX_PROFILED_STEPS)),
        checked_number(seconds, "timeout_seconds", 0, MAX_PROFILE_SECONDS, above_low=True),
    )


def num_rows_from_proto(message: diagnosis_pb2.MeasureMachineRequest) -> int:
    """How long the sequence is that layouts are compared on."""
    num_rows = given(message, "num_rows", 1024)
    return int(checked_number(num_rows, "num_rows", MIN_MEASURED_ROWS, MAX_MEASURED_ROWS))
