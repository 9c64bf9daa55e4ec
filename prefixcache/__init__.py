"""A prefix-sharing KV cache: the bookkeeping. Ids, counts and a tree; never a tensor."""

from prefixcache.block_pool import BlockId
from prefixcache.cache import PrefixCache
from prefixcache.errors import (
    DoubleFreeError,
    ForeignHandleError,
    HandleReleasedError,
    InvalidArgumentError,
    OutOfBlocksError,
    PendingCopiesError,
    PrefixCacheError,
)
from prefixcache.handle import BlockCopy, CacheHandle
from prefixcache.inspection import CacheStats, NodeDump
from prefixcache.namespace import Namespace
from prefixcache.radix_tree import Match
from prefixcache.token_chunks import ChunkHash, PackedTokens, TokenIds, pack_tokens, unpack_tokens

__all__ = [
    "BlockCopy",
    "BlockId",
    "CacheHandle",
    "CacheStats",
    "ChunkHash",
    "DoubleFreeError",
    "ForeignHandleError",
    "HandleReleasedError",
    "InvalidArgumentError",
    "Match",
    "Namespace",
    "NodeDump",
    "OutOfBlocksError",
    "PackedTokens",
    "PendingCopiesError",
    "PrefixCache",
    "PrefixCacheError",
    "TokenIds",
    "pack_tokens",
    "unpack_tokens",
]
