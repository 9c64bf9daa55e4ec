"""The cache's events as messages."""

from __future__ import annotations

from prefixcache import BlocksRemoved, BlocksStored, CacheCleared, Event, unpack_tokens
from prefixcache.v1 import cache_pb2
from prefixcache_worker.engine.event_feed import StateComplete


def event_to_proto(event: Event | StateComplete) -> cache_pb2.WatchEventsResponse:
    """The message of one event. O(tokens)."""
    message = cache_pb2.WatchEventsResponse(sequence_number=event.sequence_number)
    match event:
        case BlocksStored():
            message.stored.parent_key = event.parent_key
            message.stored.block_keys.extend(event.block_keys)
            message.stored.token_ids.extend(unpack_tokens(event.tokens))
            message.stored.public = event.public
        case BlocksRemoved():
            message.removed.block_keys.extend(event.block_keys)
            message.removed.cause = event.cause
        case CacheCleared():
            message.cleared.SetInParent()
        case StateComplete():
            message.state_complete.SetInParent()
    return message
