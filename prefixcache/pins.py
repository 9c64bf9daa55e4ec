"""Prefixes that are kept although nobody uses them at the moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from math import inf

from sortedcontainers import SortedList

from prefixcache.block_pool import BlockId, BlockPool
from prefixcache.cached_blocks import CachedBlocks
from prefixcache.errors import InvalidArgumentError, NotCachedError, PinExpiredError, PinLimitError
from prefixcache.namespace import Namespace
from prefixcache.quota import TenantLedger
from prefixcache.radix_node import RadixNode, Visit
from prefixcache.radix_tree import Path, RadixTree
from prefixcache.token_chunks import TOKEN_BYTES, PackedTokens, num_declared_chunks


class Pin:
    """A claim on the whole blocks of one prefix. `PrefixCache` makes and changes it; others only read."""

    __slots__ = (
        "block_ids",
        "expires_at",
        "is_ended",
        "namespace",
        "num_hits",
        "num_tokens",
        "serial",
        "ttl_seconds",
        "visit",
    )

    def __init__(
        self,
        *,
        serial: int,
        namespace: Namespace,
        num_tokens: int,
        block_ids: list[BlockId],
        ttl_seconds: float,
        expires_at: float,
        visit: Visit,
    ) -> None:
        self.serial = serial
        self.namespace = namespace
        self.num_tokens = num_tokens
        """Tokens whose rows are kept: whole chunks."""
        self.block_ids = block_ids
        self.ttl_seconds = ttl_seconds
        """Seconds from the last hit, or from the last renewal; infinite when it does not expire."""
        self.expires_at = expires_at
        """Seconds of the cache's clock."""
        self.is_ended = False
        self.num_hits = 0
        """Prompts that have begun with all of it since."""
        self.visit = visit


class PinTable:
    """All pins of a cache, and when they end. Each holds one reference of its blocks.

    Invariants, proved by `check`:
    - every pin is found by its last block and by its deadline, and has not ended;
    - a pin's last block ends a node;
    - `num_pinned_blocks` counts each pinned block once, and is at most the limit.
    """

    __slots__ = (
        "_blocks",
        "_clock",
        "_deadlines",
        "_last_serial",
        "_ledger",
        "_max_blocks",
        "_num_pins",
        "_of_last_block",
        "_pool",
        "_tree",
    )

    def __init__(
        self,
        pool: BlockPool,
        tree: RadixTree,
        blocks: CachedBlocks,
        ledger: TenantLedger,
        max_blocks: int,
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._tree = tree
        self._blocks = blocks
        self._ledger = ledger
        self._max_blocks = max_blocks
        self._clock = clock
        self._last_serial = 0
        self._of_last_block: dict[BlockId, list[Pin]] = {}
        self._deadlines = SortedList()  # (deadline, serial, pin)
        self._num_pins: Counter[BlockId] = Counter()

    def __len__(self) -> int:
        return len(self._deadlines)

    def __iter__(self) -> Iterator[Pin]:
        """The pin that ends first comes first."""
        return (pin for *_, pin in self._deadlines)

    @property
    def num_pinned_blocks(self) -> int:
        return len(self._num_pins)

    @property
    def num_pinned_only(self) -> int:
        """Blocks that only the tree and pins refer to. O(pinned blocks)."""
        return sum(
            self._pool.num_references(block_id) == 1 + num_pins
            for block_id, num_pins in self._num_pins.items()
        )

    def require_room(
        self, tokens: PackedTokens, namespace: Namespace, num_public_tokens: int
    ) -> list[BlockId]:
        """See `PrefixCache.require_pin_room`."""
        path, num_blocks = self._walk(tokens, namespace, num_public_tokens)
        self._require_room(path, num_blocks)
        return path.block_ids

    def pin(
        self,
        tokens: PackedTokens,
        namespace: Namespace,
        num_public_tokens: int,
        ttl_seconds: float,
        seconds_left: float | None,
    ) -> Pin:
        """See `PrefixCache.pin`."""
        _require_positive("ttl_seconds", ttl_seconds)
        if seconds_left is None:
            seconds_left = ttl_seconds
        _require_positive("seconds_left", seconds_left)
        path, num_blocks = self._walk(tokens, namespace, num_public_tokens)
        if path.num_chunks < num_blocks:
            raise NotCachedError(
                f"{path.num_chunks} of the prefix's {num_blocks} blocks are cached; "
                "run and publish it before pinning"
            )
        self.end_due()
        self._require_room(path, num_blocks)
        block_ids = path.block_ids
        visit = Visit(self._blocks.last_tick, self._ledger.account(namespace.tenant))
        self._blocks.retain_cached(block_ids)
        self._blocks.touch(path, visit, is_new_use=False, num_used_blocks=num_blocks)
        self._last_serial += 1
        pin = Pin(
            serial=self._last_serial,
            namespace=namespace,
            num_tokens=num_blocks * self._tree.block_size,
            block_ids=block_ids,
            ttl_seconds=ttl_seconds,
            expires_at=self._clock() + seconds_left,
            visit=visit,
        )
        self._num_pins.update(block_ids)
        self._of_last_block.setdefault(block_ids[-1], []).append(pin)
        self._deadlines.add((pin.expires_at, pin.serial, pin))
        return pin

    def renew(self, pin: Pin, ttl_seconds: float | None = None) -> None:
        """Its time, or another one, starts again. Raises PinExpiredError. O(log pins)."""
        self._require(pin)
        if ttl_seconds is not None:
            _require_positive("ttl_seconds", ttl_seconds)
        self._deadlines.remove((pin.expires_at, pin.serial, pin))
        if ttl_seconds is not None:
            pin.ttl_seconds = ttl_seconds
        pin.expires_at = self._clock() + pin.ttl_seconds
        self._deadlines.add((pin.expires_at, pin.serial, pin))

    def hit(self, end: RadixNode, path: Path, tokens: PackedTokens, *, is_new_use: bool) -> None:
        """A prompt of these tokens uses the path to this node: the pins on it start again.

        It counts as one of their hits if `is_new_use`. All but the last token of a pin's last block is the
        whole pin if the prompt ends with that block, for its own last token is always computed. O(depth)
        when there are pins.
        """
        if self._of_last_block:
            last_ids = [node.block_ids[-1] for node in end.lineage()]
            if path.partial is not None and path.partial[0] in self._of_last_block:
                last_id, chunk_bytes = path.partial[0], self._tree.chunk_bytes
                node = self._tree.node_ending_with(last_id)
                if node is not None and node.edge[-chunk_bytes:] == tokens[path.num_chunks * chunk_bytes :]:
                    last_ids.append(last_id)
            for block_id in last_ids:
                for pin in self._of_last_block.get(block_id, ()):
                    self.renew(pin)
                    pin.num_hits += is_new_use

    def end(self, pin: Pin) -> None:
        """Release its blocks. Raises PinExpiredError the second time. O(blocks)."""
        self._require(pin)
        self._deadlines.remove((pin.expires_at, pin.serial, pin))
        pin.is_ended = True
        for block_id in pin.block_ids:
            self._num_pins[block_id] -= 1
            if not self._num_pins[block_id]:
                del self._num_pins[block_id]
        same_end = self._of_last_block[pin.block_ids[-1]]
        same_end.remove(pin)
        if not same_end:
            del self._of_last_block[pin.block_ids[-1]]
        self._blocks.release(pin.block_ids, pin.visit.account)

    def end_due(self) -> None:
        """End the pins whose time is over. O(1) when there are none."""
        if self._of_last_block and self._deadlines[0][0] < inf:
            now = self._clock()
            for pin in [pin for *_, pin in self._deadlines.irange(maximum=(now, inf))]:
                self._blocks.note_expiry(pin.block_ids[-1], pin.expires_at)
                self.end(pin)

    def end_all(self) -> None:
        """O(pinned blocks)."""
        for pin in list(self):
            self.end(pin)

    def references(self) -> Counter[BlockId]:
        """How many pins hold each block. O(pinned blocks)."""
        return self._num_pins.copy()

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests."""
        pins = list(self)
        assert not any(pin.is_ended for pin in pins)
        assert self._num_pins == Counter(block_id for pin in pins for block_id in pin.block_ids)
        assert self.num_pinned_blocks <= self._max_blocks
        by_last_block = [pin for same_end in self._of_last_block.values() for pin in same_end]
        assert sorted(pin.serial for pin in by_last_block) == sorted(pin.serial for pin in pins)
        assert all(pin in self._of_last_block[pin.block_ids[-1]] for pin in pins)
        assert all(self._tree.node_ending_with(pin.block_ids[-1]) for pin in pins)

    def _walk(self, tokens: PackedTokens, namespace: Namespace, num_public_tokens: int) -> tuple[Path, int]:
        """What is cached of the prefix's whole blocks, and how many these are."""
        block_size, num_tokens = self._tree.block_size, len(tokens) // TOKEN_BYTES
        num_blocks = num_tokens // block_size
        if not num_blocks:
            raise InvalidArgumentError(
                f"the prefix has {num_tokens} tokens; a pin needs {block_size}, a block"
            )
        num_public_chunks = num_declared_chunks(num_public_tokens, num_tokens, block_size)
        path = self._tree.walk(tokens, namespace, num_blocks * block_size, num_public_chunks)
        return path, num_blocks

    def _require_room(self, path: Path, num_blocks: int) -> None:
        num_more = num_blocks - sum(block_id in self._num_pins for block_id in path.block_ids)
        if self.num_pinned_blocks + num_more > self._max_blocks:
            raise PinLimitError(
                f"pinning needs {num_more} more blocks, but {self.num_pinned_blocks} of at most "
                f"{self._max_blocks} are pinned; end a pin or raise max_pinned_share"
            )

    def _require(self, pin: Pin) -> None:
        if pin.is_ended:
            raise PinExpiredError("the pin has ended; pin the prefix again")
        if pin not in self._of_last_block.get(pin.block_ids[-1], ()):
            raise PinExpiredError("the pin belongs to another cache; use the one that made it")


def _require_positive(name: str, seconds: float) -> None:
    if not seconds > 0:
        raise InvalidArgumentError(f"{name} is {seconds}; give more than 0")
