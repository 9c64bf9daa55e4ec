"""A prefix-sharing KV cache: the bookkeeping. Ids, counts and a tree; never a tensor."""

from prefixcache.block_keys import BlockKey, BlockKeys
from prefixcache.block_life import BlockLifeStats, Departure
from prefixcache.block_pool import BlockId
from prefixcache.cache import PrefixCache
from prefixcache.errors import (
    DoubleFreeError,
    EventConflictError,
    EventGapError,
    ForeignHandleError,
    HandleReleasedError,
    InvalidArgumentError,
    NotCachedError,
    NotPublisherError,
    OutOfBlocksError,
    PendingCopiesError,
    PendingMovesError,
    PinExpiredError,
    PinLimitError,
    PrefixCacheError,
    QuotaExceededError,
    SnapshotDamagedError,
    SnapshotMismatchError,
    UnknownTenantError,
)
from prefixcache.event_index import EventIndex
from prefixcache.events import BlocksRemoved, BlocksStored, CacheCleared, Event, EventLog, EventState
from prefixcache.eviction_policies import POLICIES
from prefixcache.explain import Divergence, Elsewhere, Explanation, MissCause
from prefixcache.handle import HOLE, BlockCopy, CacheHandle
from prefixcache.histogram import Histogram, HistogramCounts
from prefixcache.history import Loss, Tombstone
from prefixcache.inspection import CacheStats, NodeDump
from prefixcache.namespace import Namespace
from prefixcache.pins import Pin
from prefixcache.policy_state import PolicyState, PolicySwitch
from prefixcache.quota import TenantQuota, TenantUsage
from prefixcache.radix_tree import Match
from prefixcache.restore_rule import RestoreRule
from prefixcache.snapshot import RowReader, RowWriter
from prefixcache.tier import TierStats
from prefixcache.tiers import POOL, NumWorthRestoring, Place, TierMove
from prefixcache.token_chunks import ChunkHash, PackedTokens, TokenIds, pack_tokens, unpack_tokens
from prefixcache.tree_view import NodeView, TreeView

__all__ = [
    "HOLE",
    "POLICIES",
    "POOL",
    "BlockCopy",
    "BlockId",
    "BlockKey",
    "BlockKeys",
    "BlockLifeStats",
    "BlocksRemoved",
    "BlocksStored",
    "CacheCleared",
    "CacheHandle",
    "CacheStats",
    "ChunkHash",
    "Departure",
    "Divergence",
    "DoubleFreeError",
    "Elsewhere",
    "Event",
    "EventConflictError",
    "EventGapError",
    "EventIndex",
    "EventLog",
    "EventState",
    "Explanation",
    "ForeignHandleError",
    "HandleReleasedError",
    "Histogram",
    "HistogramCounts",
    "InvalidArgumentError",
    "Loss",
    "Match",
    "MissCause",
    "Namespace",
    "NodeDump",
    "NodeView",
    "NotCachedError",
    "NotPublisherError",
    "NumWorthRestoring",
    "OutOfBlocksError",
    "PackedTokens",
    "PendingCopiesError",
    "PendingMovesError",
    "Pin",
    "PinExpiredError",
    "PinLimitError",
    "Place",
    "PolicyState",
    "PolicySwitch",
    "PrefixCache",
    "PrefixCacheError",
    "QuotaExceededError",
    "RestoreRule",
    "RowReader",
    "RowWriter",
    "SnapshotDamagedError",
    "SnapshotMismatchError",
    "TenantQuota",
    "TenantUsage",
    "TierMove",
    "TierStats",
    "TokenIds",
    "Tombstone",
    "TreeView",
    "UnknownTenantError",
    "pack_tokens",
    "unpack_tokens",
]
