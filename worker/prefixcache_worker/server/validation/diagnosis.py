"""Every bound on the calls that look into the worker."""

from __future__ import annotations

from prefixcache.v1 import diagnosis_pb2
from prefixcache_worker.server.validation.bounds import checked_number

MAX_WATCHED_STEPS = 100_000


def max_steps_from_proto(message: diagnosis_pb2.WatchStepsRequest) -> int | None:
    """How many steps are to be watched; None: all."""
    if not message.HasField("max_steps"):
        return None
    return int(checked_number(message.max_steps, "max_steps", 1, MAX_WATCHED_STEPS))
