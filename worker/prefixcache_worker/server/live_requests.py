"""What runs and waits now, and what of it is held in common."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from operator import attrgetter

from prefixcache import BlockId
from prefixcache.v1 import diagnosis_pb2
from prefixcache_worker.engine.answer import Answer
from prefixcache_worker.engine.engine import Engine

MAX_LIVE_REQUESTS = 1000
"""In one answer."""


def live_requests(
    engine: Engine, tenant: str | None, *, limit: int = MAX_LIVE_REQUESTS
) -> diagnosis_pb2.ListRequestsResponse:
    """The live requests of a tenant, or of all with None, the oldest first, at most `limit`.

    A tenant's are looked at as if there were no others, so that nothing is told of what those hold.
    Call it on the engine's thread, between two steps. O(blocks that these requests hold).
    """
    answers = [answer for answer in engine.answers() if tenant is None or answer.tenant == tenant]
    answers.sort(key=attrgetter("arrived"))
    held = [_held_blocks(answer) for answer in answers]
    num_holders = Counter(chain.from_iterable(held))
    response = diagnosis_pb2.ListRequestsResponse(num_left_out=max(0, len(answers) - limit))
    for answer, block_ids in zip(answers[:limit], held, strict=False):
        message = response.requests.add(
            request_id=answer.request.request_id,
            tenant=answer.tenant,
            state=_state(answer),
            prompt_tokens=len(answer.request.prompt_token_ids),
            cached_tokens=answer.num_cached_tokens,
            computed_tokens=sum(sequence.num_computed_tokens for sequence in answer.sequences),
            output_tokens=answer.num_output_tokens,
            num_blocks=len(block_ids),
            num_shared_blocks=sum(num_holders[block_id] > 1 for block_id in block_ids),
            num_choices=len(answer.sequences),
            age_seconds=answer.counted - answer.arrived,  # `engine.answers` has just counted
            priority=answer.request.priority,
        )
        if answer.started is not None:
            message.queue_seconds = answer.started - answer.arrived
    return response


def _held_blocks(answer: Answer) -> set[BlockId]:
    handles = (sequence.handle for sequence in answer.sequences)
    return {block_id for handle in handles if handle is not None for block_id in handle.held_blocks}


def _state(answer: Answer) -> diagnosis_pb2.RequestState:
    first = answer.sequences[0]
    if first.is_paused:
        return diagnosis_pb2.REQUEST_STATE_PAUSED
    if first.handle is None:
        return diagnosis_pb2.REQUEST_STATE_WAITING
    if first.is_prefilling:
        return diagnosis_pb2.REQUEST_STATE_PREFILLING
    return diagnosis_pb2.REQUEST_STATE_DECODING
