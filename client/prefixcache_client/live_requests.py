"""What a worker is doing: from proto messages to immutable Python values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from prefixcache.v1 import diagnosis_pb2
from prefixcache_client.fields import from_fields


class RequestState(Enum):
    """What a request is doing."""

    WAITING = "waiting"
    """In the queue: it has not run, or had to give way."""
    PREFILLING = "prefilling"
    DECODING = "decoding"
    PAUSED = "paused"
    """It gets no steps until its client has read what it has been sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRequest:
    """A request that runs or waits. Of several choices the counts of tokens are sums."""

    request_id: str
    tenant: str
    state: RequestState
    prompt_tokens: int
    cached_tokens: int
    """Those of the prompt that came from the cache."""
    computed_tokens: int
    """Tokens of KV that it has computed or found, prompt and answer."""
    output_tokens: int
    num_blocks: int
    """Blocks that it holds."""
    num_shared_blocks: int
    """Those of them that others of the requests that the caller is told of hold too."""
    num_choices: int
    """Choices that have not ended."""
    age_seconds: float
    queue_seconds: float | None
    """Until it first ran; None while it has not."""
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRequests:
    """The caller's tenant's requests, or for an admin all."""

    requests: tuple[LiveRequest, ...]
    """The oldest first."""
    num_left_out: int
    """Those that were too many for one answer."""


def live_requests_from_proto(response: diagnosis_pb2.ListRequestsResponse) -> LiveRequests:
    """The live requests."""
    requests = tuple(_request_from_proto(request) for request in response.requests)
    return LiveRequests(requests=requests, num_left_out=response.num_left_out)


def _request_from_proto(request: diagnosis_pb2.LiveRequest) -> LiveRequest:
    name = diagnosis_pb2.RequestState.Name(request.state).removeprefix("REQUEST_STATE_")
    queue_seconds = request.queue_seconds if request.HasField("queue_seconds") else None
    return from_fields(LiveRequest, request, state=RequestState[name], queue_seconds=queue_seconds)
