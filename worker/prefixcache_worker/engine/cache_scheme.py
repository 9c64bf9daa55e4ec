"""What the engine needs of whoever keeps account of the KV blocks, and the schemes there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Protocol, TypeVar

from prefixcache import (
    BlockCopy,
    BlockId,
    CacheStats,
    EventLog,
    Match,
    Namespace,
    NodeDump,
    NumWorthRestoring,
    PrefixCache,
    TokenIds,
    TreeView,
)
from prefixcache.block_pool import OnFree
from prefixcache_worker.engine.unshared_cache import UnsharedCache


class SequenceHandle(Protocol):
    """One sequence's claim on blocks. The scheme that made it changes it; everybody else only reads."""

    @property
    def block_table(self) -> Sequence[BlockId]: ...
    @property
    def held_blocks(self) -> Sequence[BlockId]:
        """What is given back when it is released, as far as nobody else holds it."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def num_cached_tokens(self) -> int: ...
    @property
    def num_restored_tokens(self) -> int: ...
    @property
    def copies(self) -> Sequence[BlockCopy]: ...


HandleT = TypeVar("HandleT", bound=SequenceHandle)


class CacheScheme(Protocol[HandleT]):
    """Bookkeeping of blocks, without tensors. `PrefixCache` has the contracts of the methods.

    A scheme that shares nothing keeps them too: it finds nothing, and what is published is nobody's to find.
    """

    @property
    def shares_prefixes(self) -> bool:
        """Whether one request may find what another one has computed."""

    @property
    def num_blocks(self) -> int: ...
    @property
    def block_size(self) -> int: ...

    def num_holders(self, block_id: BlockId) -> int: ...
    def match(self, token_ids: TokenIds, namespace: Namespace, *, num_public_tokens: int = 0) -> Match: ...
    def acquire(
        self,
        token_ids: TokenIds,
        namespace: Namespace,
        *,
        num_public_tokens: int = 0,
        use_cache: bool = True,
        max_cached_tokens: int | None = None,
        priority: int = 0,
        priority_seconds: float = inf,
        is_resumed: bool = False,
    ) -> HandleT: ...
    def extend(self, handle: HandleT, token_ids: TokenIds) -> list[BlockCopy]: ...
    def complete_copies(self, handle: HandleT) -> None: ...
    def fork(self, handle: HandleT) -> HandleT:
        """A second claim on the same tokens. Raises OutOfBlocksError in a scheme that copies all of it."""

    def give_back(self, handle: HandleT, start_token: int, end_token: int) -> int: ...
    def publish(self, handle: HandleT, num_written_tokens: int, *, include_tail: bool = False) -> int: ...
    def release(self, handle: HandleT) -> None: ...
    def stats(self) -> CacheStats: ...
    def dump(self, max_depth: int = 0) -> list[NodeDump]: ...
    def view(
        self, tenant: str | None = None, *, max_depth: int = 0, max_nodes: int | None = None
    ) -> TreeView: ...
    def check(self) -> None: ...


def make_cache(
    scheme: str,
    *,
    num_blocks: int,
    block_size: int,
    max_total_tokens: int,
    events: EventLog | None = None,
    tiers: Sequence[tuple[str, int]] = (),
    num_worth_restoring: NumWorthRestoring = len,
    max_pinned_share: float = 0.5,
    clock: Callable[[], float] = time.monotonic,
    on_free: OnFree | None = None,
) -> CacheScheme[Any]:
    """The bookkeeping of a scheme that `--scheme` may name, over an empty pool.

    `max_total_tokens`, the most that a sequence can have, is what `contiguous` reserves for each. `events`
    hears of what is cached, which is nothing where nothing is shared. `tiers` and `num_worth_restoring` are
    `PrefixCache`'s: requires none in the other schemes.
    """
    match scheme:
        case "shared":
            return PrefixCache(
                num_blocks=num_blocks,
                block_size=block_size,
                events=events,
                tiers=tiers,
                num_worth_restoring=num_worth_restoring,
                max_pinned_share=max_pinned_share,
                clock=clock,
                on_free=on_free,
            )
        case "paged":
            return UnsharedCache(num_blocks=num_blocks, block_size=block_size, on_free=on_free)
        case "contiguous":
            num_reserved = -(-min(max_total_tokens, num_blocks * block_size) // block_size)
            return UnsharedCache(
                num_blocks=num_blocks, block_size=block_size, extent_blocks=num_reserved, on_free=on_free
            )
    raise AssertionError(f"{scheme!r} is no scheme")
