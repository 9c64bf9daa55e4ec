"""Every error a caller of the worker can meet. `server/status.py` maps them to gRPC."""

from __future__ import annotations

from math import ceil


class WorkerError(Exception):
    """Base of all errors below. The message is one sentence for the person who made the request."""


class InvalidRequestError(WorkerError):
    """A field of a request is out of its bounds."""

    def __init__(self, field_name: str, description: str) -> None:
        super().__init__(f"{field_name}: {description}")
        self.field_name = field_name
        self.description = description


class DuplicateRequestError(WorkerError):
    """A live request already has this id."""


class UnauthenticatedError(WorkerError):
    """The call bears no credential that the worker knows."""


class PermissionDeniedError(WorkerError):
    """The credential does not allow this call."""


class NotFoundError(WorkerError):
    """What the request names does not exist, or not for this caller."""


class PrefixNotKeptError(WorkerError):
    """A prefix could not be kept."""


class PrefixBudgetError(PrefixNotKeptError):
    """More would be kept for the tenant, or of the whole pool, than is allowed."""

    def __init__(self, tenant: str, sentence: str) -> None:
        super().__init__(sentence)
        self.tenant = tenant


class PrefixLostError(PrefixNotKeptError):
    """What was computed to be kept was not in the cache when it was to be kept."""


class SchemeError(WorkerError):
    """The worker's scheme of keeping KV blocks cannot do this."""


class AbortedError(WorkerError):
    """The tenant ended the request by another call."""


class DeadlineExceededError(WorkerError):
    """The time that the client allowed is over."""


class SlowReaderError(WorkerError):
    """The client did not read what was generated for it."""


class QueueFullError(WorkerError):
    """The waiting queue is at its limit; try again later."""


class RateLimitedError(WorkerError):
    """The tenant has sent more requests than its rate allows."""

    def __init__(self, *, tenant: str, requests_per_minute: float, retry_seconds: float) -> None:
        super().__init__(
            f"tenant {tenant!r} may send {requests_per_minute:g} requests a minute; "
            f"send this one again in {ceil(10 * retry_seconds) / 10:g} seconds"
        )
        self.tenant = tenant
        self.retry_seconds = retry_seconds


class TooManyRequestsError(WorkerError):
    """The tenant has as many live requests as it may have."""

    def __init__(self, *, tenant: str, max_live_requests: int) -> None:
        super().__init__(
            f"tenant {tenant!r} may have {max_live_requests} requests that run or wait, and has them; "
            "send this one when one of them has ended"
        )
        self.tenant = tenant


class NotFiniteError(WorkerError):
    """The model gave a request scores that are no numbers."""


class EngineStoppedError(WorkerError):
    """The engine is draining or has stopped."""


class AuditError(WorkerError):
    """Something is left of requests that have ended, or an invariant is broken: our bug."""


class SnapshotsOffError(WorkerError):
    """The worker was given no folder for snapshots."""


class CacheNotEmptyError(WorkerError):
    """A snapshot goes into an empty cache only."""


class SnapshotFailedError(WorkerError):
    """A snapshot could not be written, or is not one that this worker can take."""


class ConfigError(WorkerError):
    """A setting, a model file or a checkpoint cannot be used. Names the flag or the file."""
