"""Changes of what is cached: from proto messages to immutable Python values."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache.v1 import cache_pb2
from prefixcache_client.errors import PrefixCacheClientError


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksStored:
    """A run of whole blocks can be found now."""

    sequence_number: int
    parent_key: bytes
    """What the first key is chained from."""
    block_keys: tuple[bytes, ...]
    token_ids: tuple[int, ...]
    public: bool
    """Whether all tenants may read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksRemoved:
    """Blocks cannot be found any more."""

    sequence_number: int
    block_keys: tuple[bytes, ...]
    """Each before the one that it was chained from."""
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCleared:
    """No block can be found any more."""

    sequence_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateComplete:
    """All that was cached when the watch began has been told, in `BlocksStored` of the same number."""

    sequence_number: int


CacheEvent = BlocksStored | BlocksRemoved | CacheCleared | StateComplete


def cache_event_from_proto(response: cache_pb2.WatchEventsResponse) -> CacheEvent:
    """The event of one message. Raises PrefixCacheClientError for one that this client does not know."""
    number = response.sequence_number
    match response.WhichOneof("event"):
        case "stored":
            return BlocksStored(
                sequence_number=number,
                parent_key=response.stored.parent_key,
                block_keys=tuple(response.stored.block_keys),
                token_ids=tuple(response.stored.token_ids),
                public=response.stored.public,
            )
        case "removed":
            return BlocksRemoved(
                sequence_number=number,
                block_keys=tuple(response.removed.block_keys),
                cause=response.removed.cause,
            )
        case "cleared":
            return CacheCleared(sequence_number=number)
        case "state_complete":
            return StateComplete(sequence_number=number)
    raise PrefixCacheClientError(f"event {number} is of a kind that this client is too old to know")
