"""The prefixes that tenants have asked to be kept."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from prefixcache import (
    BlockId,
    Namespace,
    NotCachedError,
    PackedTokens,
    Pin,
    PinLimitError,
)
from prefixcache.token_chunks import TOKEN_BYTES
from prefixcache_worker.engine.cache_scheme import CacheScheme
from prefixcache_worker.errors import (
    NotFoundError,
    PermissionDeniedError,
    PrefixBudgetError,
    PrefixLostError,
    PrefixNotKeptError,
    SchemeError,
)

MAX_PREFIXES = 4096
"""Of all tenants. They may share their blocks, so the budget of pinned blocks does not bound their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixOrder:
    """What is to be kept, for whom and for how long."""

    namespace: Namespace
    tokens: PackedTokens
    is_public: bool = False
    ttl_seconds: float = inf
    """After the last use."""
    label: str = ""
    max_pinned_blocks: int | None = None
    """Bounds the blocks of all prefixes of the tenant, and the number of these; None: the bounds on all."""

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) // TOKEN_BYTES

    @property
    def num_public_tokens(self) -> int:
        return self.num_tokens if self.is_public else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A kept prefix as it was at one moment."""

    prefix_id: str
    tenant: str
    label: str
    num_tokens: int
    num_kept_tokens: int
    """Those in whole blocks."""
    num_blocks: int
    public: bool
    ttl_seconds: float
    """Infinite when it is kept for ever; so is what is left then."""
    seconds_left: float
    num_uses: int
    created_ns: int
    """Nanoseconds of the clock; no other prefix of the tenant has the same."""


class PrefixRecord(NamedTuple):
    """A kept prefix in plain values, as they can be saved. None stands for ever."""

    prefix_id: str
    tenant: str
    salt: str
    tokens: PackedTokens
    is_public: bool
    label: str
    ttl_seconds: float | None
    seconds_left: float | None
    num_uses: int


class _Kept:
    """One prefix and its pin."""

    __slots__ = ("created_ns", "label", "num_earlier_uses", "order", "pin", "prefix_id")

    def __init__(self, prefix_id: str, order: PrefixOrder, pin: Pin, created_ns: int) -> None:
        self.prefix_id = prefix_id
        self.order = order
        self.pin = pin
        self.created_ns = created_ns
        self.label = order.label
        self.num_earlier_uses = 0

    @property
    def tenant(self) -> str:
        return self.order.namespace.tenant

    @property
    def key(self) -> tuple[Namespace, bool, PackedTokens]:
        """What no two prefixes have in common."""
        return self.order.namespace, self.order.is_public, self.order.tokens


class PrefixBook:
    """Knows every kept prefix by its id, and holds its pin. Lives on the engine's thread.

    A pin ends when its time is over or the cache is reset; the book finds that out, and forgets the
    prefix, before it answers anything. What does not exist and what a tenant may not see look alike.
    All methods are O(prefixes) at most, and what the cache takes.

    Invariant, proved by `check`: the prefixes found by their ids, by their keys and by their tenants are
    the same, and each tenant's blocks are counted once for every pin.
    """

    def __init__(self, cache: CacheScheme[Any], *, clock: Callable[[], float]) -> None:
        """`clock` is the cache's. Where nothing is shared, every method but `check` raises SchemeError."""
        self._cache: Any = cache  # a PrefixCache, if it shares prefixes
        self._clock = clock
        self._kept_by_id: dict[str, _Kept] = {}
        self._kept_by_key: dict[tuple[Namespace, bool, PackedTokens], _Kept] = {}
        self._kept_by_tenant: dict[str, dict[str, _Kept]] = {}
        self._num_pins_by_tenant: dict[str, Counter[BlockId]] = {}

    def renew_same(self, order: PrefixOrder) -> Prefix | None:
        """The tenant's prefix of the same tokens, salt and publicity as it is, its time started anew."""
        self._forget_ended()
        kept = self._kept_by_key.get((order.namespace, order.is_public, order.tokens))
        if kept is None:
            return None
        self._cache.renew_pin(kept.pin)
        return self._state(kept)

    def require_room(self, order: PrefixOrder) -> None:
        """Raise PrefixBudgetError if the prefix could not be kept even if it were cached."""
        self._forget_ended()
        tenant, num_blocks = order.namespace.tenant, order.num_tokens // self._cache.block_size
        try:
            cached_ids = self._cache.require_pin_room(
                order.tokens, order.namespace, num_public_tokens=order.num_public_tokens
            )
        except PinLimitError as error:
            raise _no_room(tenant, num_blocks) from error
        if len(self._kept_by_id) >= MAX_PREFIXES:
            raise _no_room(tenant, num_blocks)
        most = order.max_pinned_blocks
        own = self._num_pins_by_tenant.get(tenant, Counter())
        num_more = num_blocks - sum(block_id in own for block_id in cached_ids)
        num_prefixes = len(self._kept_by_tenant.get(tenant, ()))
        if most is not None and (len(own) + num_more > most or num_prefixes >= most):
            raise PrefixBudgetError(
                tenant,
                f"the prefix needs {num_more} more blocks; the tenant may keep {most} in as many prefixes, "
                f"and keeps {len(own)} in {num_prefixes}; delete a prefix, or ask for a higher limit",
            )

    def keep(self, order: PrefixOrder) -> Prefix:
        """Pin what is cached of these tokens: all of their whole blocks, or nothing.

        When the tenant has the same prefix already, it is renewed and returned.
        Raises PrefixBudgetError, or PrefixLostError when they are not cached.
        """
        same = self.renew_same(order)
        return same if same is not None else self._state(self._keep(secrets.token_urlsafe(16), order))

    def start_with(self, prefix_id: str, *, tenant: str) -> PrefixOrder:
        """What a tenant's prompt begins with that names this prefix; its time starts anew.

        Raises NotFoundError unless it is the tenant's own, or public.
        """
        kept = self._visible(prefix_id, tenant, sees_all=False)
        self._cache.renew_pin(kept.pin)  # or it might end while the prompt waits
        return kept.order

    def get(self, prefix_id: str, *, tenant: str, sees_all: bool = False) -> Prefix:
        """Raises NotFoundError unless it is the tenant's own or public, or the tenant `sees_all`."""
        return self._state(self._visible(prefix_id, tenant, sees_all=sees_all))

    def page(self, tenant: str, *, after_ns: int, size: int) -> tuple[list[Prefix], bool]:
        """The tenant's prefixes made after this time, the oldest first, and whether there are more."""
        self._forget_ended()
        later = (kept for kept in self._kept_by_tenant.get(tenant, {}).values() if kept.created_ns > after_ns)
        prefixes = [self._state(kept) for kept in islice(later, size + 1)]
        return prefixes[:size], len(prefixes) > size

    def update(
        self,
        prefix_id: str,
        *,
        tenant: str,
        sees_all: bool = False,
        ttl_seconds: float | None = None,
        label: str | None = None,
    ) -> Prefix:
        """Change what is given, and start its time anew.

        Raises NotFoundError like `get`, and PermissionDeniedError when it is public and another tenant's.
        """
        kept = self._own(prefix_id, tenant, sees_all=sees_all)
        self._cache.renew_pin(kept.pin, ttl_seconds=ttl_seconds)
        if label is not None:
            kept.label = label
        return self._state(kept)

    def delete(self, prefix_id: str, *, tenant: str, sees_all: bool = False) -> None:
        """Its blocks may be evicted from now on. Raises as `update` does."""
        kept = self._own(prefix_id, tenant, sees_all=sees_all)
        self._cache.end_pin(kept.pin)
        self._forget(kept)

    def num_pinned_blocks(self) -> dict[str, int]:
        """Blocks that the prefixes of each tenant keep, each counted once. Tenants with none are left out."""
        self._forget_ended()
        return {tenant: len(num_pins) for tenant, num_pins in self._num_pins_by_tenant.items()}

    def records(self) -> list[PrefixRecord]:
        """All prefixes, the oldest first, for `restore`."""
        self._forget_ended()
        return [
            PrefixRecord(
                prefix_id=prefix.prefix_id,
                tenant=prefix.tenant,
                salt=kept.order.namespace.salt,
                tokens=kept.order.tokens,
                is_public=prefix.public,
                label=prefix.label,
                ttl_seconds=None if prefix.ttl_seconds == inf else prefix.ttl_seconds,
                seconds_left=None if prefix.seconds_left == inf else prefix.seconds_left,
                num_uses=prefix.num_uses,
            )
            for kept in self._kept_by_id.values()
            for prefix in [self._state(kept)]
        ]

    def restore(self, records: Iterable[PrefixRecord], *, model: str) -> int:
        """Keep again, under their old ids, those that are cached for this model build and find room.

        Returns how many these are. Requires: the book has none of them.
        """
        num_kept = 0
        for record in records:
            order = PrefixOrder(
                namespace=Namespace(model=model, tenant=record.tenant, salt=record.salt),
                tokens=record.tokens,
                is_public=record.is_public,
                ttl_seconds=inf if record.ttl_seconds is None else record.ttl_seconds,
                label=record.label,
            )
            if record.seconds_left is not None and not record.seconds_left > 0:
                continue
            try:
                kept = self._keep(record.prefix_id, order, seconds_left=record.seconds_left)
            except PrefixNotKeptError:
                continue  # what is not warm any more is no prefix; its tenant is answered NOT_FOUND
            kept.num_earlier_uses = record.num_uses
            num_kept += 1
        return num_kept

    def check(self) -> None:
        """Raise AssertionError if the invariant is broken. For tests."""
        if self._cache.shares_prefixes:
            self._forget_ended()
        everything = list(self._kept_by_id.values())
        assert [kept.prefix_id for kept in everything] == list(self._kept_by_id)
        assert {kept.key: kept for kept in everything} == self._kept_by_key
        by_tenant = [kept for of_tenant in self._kept_by_tenant.values() for kept in of_tenant.values()]
        assert len(by_tenant) == len(everything) == len(self._kept_by_key)
        assert all(self._kept_by_tenant[kept.tenant][kept.prefix_id] is kept for kept in everything)
        assert self._kept_by_tenant.keys() == self._num_pins_by_tenant.keys()
        for tenant, of_tenant in self._kept_by_tenant.items():
            ages = [kept.created_ns for kept in of_tenant.values()]
            assert ages == sorted(set(ages))
            block_ids = (block_id for kept in of_tenant.values() for block_id in kept.pin.block_ids)
            assert self._num_pins_by_tenant[tenant] == Counter(block_ids)

    def _keep(self, prefix_id: str, order: PrefixOrder, seconds_left: float | None = None) -> _Kept:
        self.require_room(order)
        try:
            pin = self._cache.pin(
                order.tokens,
                order.namespace,
                num_public_tokens=order.num_public_tokens,
                ttl_seconds=order.ttl_seconds,
                seconds_left=seconds_left,
            )
        except NotCachedError as error:
            raise PrefixLostError(
                "the prefix is not in the cache any more, because the cache was reset while it was computed, "
                "or could not be stored exactly; create it again"
            ) from error
        of_tenant = self._kept_by_tenant.setdefault(order.namespace.tenant, {})
        youngest = next(reversed(of_tenant.values()), None)
        created_ns = int(self._clock() * 1e9)
        if youngest is not None:
            created_ns = max(created_ns, youngest.created_ns + 1)
        kept = _Kept(prefix_id, order, pin, created_ns)
        of_tenant[prefix_id] = self._kept_by_id[prefix_id] = self._kept_by_key[kept.key] = kept
        self._num_pins_by_tenant.setdefault(kept.tenant, Counter()).update(pin.block_ids)
        return kept

    def _visible(self, prefix_id: str, tenant: str, *, sees_all: bool) -> _Kept:
        self._forget_ended()
        kept = self._kept_by_id.get(prefix_id)
        if kept is None or not (sees_all or kept.order.is_public or kept.tenant == tenant):
            raise NotFoundError(
                f"prefix_id: there is no prefix {prefix_id!r}, or it has ended; create it again"
            )
        return kept

    def _own(self, prefix_id: str, tenant: str, *, sees_all: bool) -> _Kept:
        kept = self._visible(prefix_id, tenant, sees_all=sees_all)
        if not sees_all and kept.tenant != tenant:
            raise PermissionDeniedError(
                f"the prefix {prefix_id!r} is another tenant's; only that tenant or an admin may change it"
            )
        return kept

    def _state(self, kept: _Kept) -> Prefix:
        order, pin = kept.order, kept.pin
        return Prefix(
            prefix_id=kept.prefix_id,
            tenant=kept.tenant,
            label=kept.label,
            num_tokens=order.num_tokens,
            num_kept_tokens=pin.num_tokens,
            num_blocks=len(pin.block_ids),
            public=order.is_public,
            ttl_seconds=pin.ttl_seconds,
            seconds_left=max(pin.expires_at - self._clock(), 0.0),
            num_uses=kept.num_earlier_uses + pin.num_hits,
            created_ns=kept.created_ns,
        )

    def _forget_ended(self) -> None:
        if not self._cache.shares_prefixes:
            raise SchemeError(
                "this worker shares nothing, so it keeps no prefixes; use one with --scheme shared"
            )
        self._cache.pins()  # ends those whose time is over
        for kept in [kept for kept in self._kept_by_id.values() if kept.pin.is_ended]:
            self._forget(kept)

    def _forget(self, kept: _Kept) -> None:
        del self._kept_by_id[kept.prefix_id], self._kept_by_key[kept.key]
        of_tenant, num_pins = self._kept_by_tenant[kept.tenant], self._num_pins_by_tenant[kept.tenant]
        del of_tenant[kept.prefix_id]
        num_pins.subtract(kept.pin.block_ids)
        for block_id in kept.pin.block_ids:
            if not num_pins[block_id]:
                del num_pins[block_id]
        if not of_tenant:
            del self._kept_by_tenant[kept.tenant], self._num_pins_by_tenant[kept.tenant]


def _no_room(tenant: str, num_blocks: int) -> PrefixBudgetError:
    """Says nothing of what other tenants keep."""
    return PrefixBudgetError(
        tenant,
        f"the prefix has {num_blocks} blocks, and the worker has no room to keep so many; "
        "delete a prefix, try a shorter one, or try again when others have ended",
    )
