"""What each tenant may hold, and what it is charged for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sortedcontainers import SortedList

from prefixcache.errors import InvalidArgumentError, UnknownTenantError

if TYPE_CHECKING:
    from prefixcache.graveyard import Pile
    from prefixcache.radix_node import RadixNode

MAX_PAYERS = 8
MAX_REMEMBERED_ACCOUNTS = 4096
"""With more accounts than this, those that hold nothing and have only the default quota are forgotten now and
then."""
SHARES_PER_BLOCK = 840
"""A block's price, in equal parts that stay whole for any number of payers up to `MAX_PAYERS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantQuota:
    """Bounds on the blocks of one tenant."""

    floor_blocks: int = 0
    """Private cached blocks that are never evicted for other tenants."""
    ceiling_blocks: int | None = None
    """The most blocks of its own that the tenant may hold; its idle ones make room. None: no bound."""

    def __post_init__(self) -> None:
        if not all(isinstance(blocks, int | None) for blocks in (self.floor_blocks, self.ceiling_blocks)):
            raise InvalidArgumentError(
                f"floor_blocks is {self.floor_blocks!r} and ceiling_blocks is {self.ceiling_blocks!r}; "
                "give whole numbers of blocks"
            )
        if self.floor_blocks < 0:
            raise InvalidArgumentError(f"floor_blocks is {self.floor_blocks}; give 0 or more")
        if self.ceiling_blocks is not None and self.ceiling_blocks < max(1, self.floor_blocks):
            raise InvalidArgumentError(
                f"ceiling_blocks is {self.ceiling_blocks}; give at least 1, "
                f"and not less than the floor of {self.floor_blocks}"
            )


class TenantAccount:
    """What one tenant holds now, and what its requests came to. `TenantLedger` and the cache write it.

    The account without a tenant is the public: it owns the blocks of public nodes.
    """

    __slots__ = (
        "leaves",
        "num_bypassed",
        "num_cached_blocks",
        "num_evicted_blocks",
        "num_hit_tokens",
        "num_own_blocks",
        "num_prompt_tokens",
        "num_requests",
        "num_resumed_hit_tokens",
        "num_shares",
        "quota",
        "tenant",
    )

    def __init__(self, tenant: str, quota: TenantQuota | None = None) -> None:
        self.tenant = tenant
        self.quota = quota or TenantQuota()
        self.leaves = SortedList()
        """Entries of its evictable leaves, kept by `EvictionOrder` while it has a quota."""
        self.num_cached_blocks = 0
        """Blocks in its nodes."""
        self.num_own_blocks = 0
        """Blocks that its sequences hold and that were in no node yet."""
        self.num_shares = 0
        """Its parts of public blocks, in `SHARES_PER_BLOCK`ths."""
        self.num_requests = 0
        self.num_prompt_tokens = 0
        self.num_hit_tokens = 0
        self.num_resumed_hit_tokens = 0
        self.num_bypassed = 0
        self.num_evicted_blocks = 0

    @property
    def has_quota(self) -> bool:
        return self.quota.floor_blocks > 0 or self.quota.ceiling_blocks is not None

    @property
    def num_blocks(self) -> int:
        return self.num_cached_blocks + self.num_own_blocks

    @property
    def num_charged_blocks(self) -> float:
        """Its own blocks, and its parts of public ones."""
        return self.num_blocks + self.num_shares / SHARES_PER_BLOCK

    @property
    def num_surplus_blocks(self) -> int:
        """Cached blocks above the floor: as many as others may take."""
        return max(0, self.num_cached_blocks - self.quota.floor_blocks)

    def num_blocks_over_ceiling(self, num_new: int) -> int:
        """How many blocks it has to give up to be allowed so many more. 0 without a ceiling."""
        if self.quota.ceiling_blocks is None:
            return 0
        return max(0, self.num_blocks + num_new - self.quota.ceiling_blocks)

    def count_request(
        self, num_prompt_tokens: int, num_hit_tokens: int, *, uses_cache: bool, is_resumed: bool
    ) -> None:
        """A prompt was acquired: it counts once, and not at all for the hits if the cache was off."""
        if is_resumed:
            self.num_resumed_hit_tokens += num_hit_tokens
        elif uses_cache:
            self.num_requests += 1
            self.num_prompt_tokens += num_prompt_tokens
            self.num_hit_tokens += num_hit_tokens
        else:
            self.num_bypassed += 1

    def usage(self) -> TenantUsage:
        """What it holds now. O(1)."""
        return TenantUsage(
            tenant=self.tenant,
            floor_blocks=self.quota.floor_blocks,
            ceiling_blocks=self.quota.ceiling_blocks,
            num_blocks=self.num_blocks,
            num_cached_blocks=self.num_cached_blocks,
            num_charged_blocks=self.num_charged_blocks,
            num_requests=self.num_requests,
            num_prompt_tokens=self.num_prompt_tokens,
            num_hit_tokens=self.num_hit_tokens,
            num_resumed_hit_tokens=self.num_resumed_hit_tokens,
            num_bypassed=self.num_bypassed,
            num_evicted_blocks=self.num_evicted_blocks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUsage:
    """What one tenant holds and has asked for so far."""

    tenant: str
    floor_blocks: int
    ceiling_blocks: int | None
    num_blocks: int
    """Blocks of its own, cached or in use."""
    num_cached_blocks: int
    """Those that others of the same scope could hit."""
    num_charged_blocks: float
    """Its own blocks, and its equal part of each public block among the last tenants that used it."""
    num_requests: int
    """Prompts acquired with the cache on, each once however often it was preempted."""
    num_prompt_tokens: int
    num_hit_tokens: int
    """Prompt tokens found in the cache, counted once a request."""
    num_resumed_hit_tokens: int
    """Tokens found again by sequences that came back after a preemption; no hits."""
    num_bypassed: int
    """Prompts acquired with the cache off."""
    num_evicted_blocks: int
    """Blocks of its private nodes evicted so far."""


class TenantLedger:
    """The accounts of all tenants.

    A block is its tenant's from allocation until it is free again, or becomes public, or leaves
    the tree while others hold it. A public block is paid for in equal parts by the tenants that
    used it last, at most `MAX_PAYERS`. So no tenant's charge grows by what others do.

    Invariant, proved by `check`: cached blocks and shares are what counting again gives.
    """

    __slots__ = (
        "_account_of_tenant",
        "_default_quota",
        "_most_accounts",
        "_num_floors",
        "_pool_blocks",
        "_with_own_quota",
        "public",
    )

    def __init__(self, num_blocks: int, quotas: Mapping[str, TenantQuota]) -> None:
        """Raises InvalidArgumentError when the floors sum to more than the pool."""
        self.public = TenantAccount("")
        self._account_of_tenant: dict[str, TenantAccount] = {}
        self._most_accounts = MAX_REMEMBERED_ACCOUNTS
        self._default_quota = TenantQuota()
        self._with_own_quota: set[str] = set()
        self._pool_blocks = num_blocks
        self._num_floors = 0
        for tenant, quota in quotas.items():
            self.set_quota(tenant, quota)

    def find_account(self, tenant: str) -> TenantAccount:
        """The tenant's account, or one for it that is not open yet. O(1)."""
        return self._account_of_tenant.get(tenant) or TenantAccount(tenant, self._default_quota)

    @property
    def is_crowded(self) -> bool:
        """Whether it is time for `forget_idle`."""
        return len(self._account_of_tenant) > self._most_accounts

    def forget_idle(self, in_use: set[TenantAccount]) -> None:
        """Forget the tenants that hold nothing, have only the default quota and are not `in_use`, and what
        they came to.

        Amortized O(1) for each account that was opened since the last time: the next is when there are
        twice as many as now.
        """
        self._account_of_tenant = {
            tenant: account
            for tenant, account in self._account_of_tenant.items()
            if account in in_use or tenant in self._with_own_quota or account.num_blocks or account.num_shares
        }
        self._most_accounts = max(2 * len(self._account_of_tenant), MAX_REMEMBERED_ACCOUNTS)

    def open(self, account: TenantAccount) -> None:
        """From now on it is the tenant's. Nothing happens when it is already. O(1)."""
        found = self._account_of_tenant.setdefault(account.tenant, account)
        assert found is account, f"two accounts of {account.tenant!r}"

    def account(self, tenant: str) -> TenantAccount:
        """The tenant's account, opened when there is none. O(1)."""
        account = self.find_account(tenant)
        self.open(account)
        return account

    def accounts(self) -> Iterable[TenantAccount]:
        """All tenants' accounts."""
        return self._account_of_tenant.values()

    def known_account(self, tenant: str) -> TenantAccount:
        """The tenant's account, or UnknownTenantError."""
        account = self._account_of_tenant.get(tenant)
        if account is None:
            raise UnknownTenantError(tenant, num_tenants=len(self._account_of_tenant))
        return account

    def set_quota(self, tenant: str, quota: TenantQuota | None) -> TenantAccount:
        """From now on; what is above a new ceiling stays until the tenant allocates. None: the default one
        again. O(tenants).

        Raises InvalidArgumentError when the floors would sum to more than the pool.
        """
        own = self._default_quota if quota is None else quota
        floors = {account.tenant: account.quota.floor_blocks for account in self.accounts()}
        floors[tenant] = own.floor_blocks
        if sum(floors.values()) > self._pool_blocks:
            raise InvalidArgumentError(
                f"the floors of all tenants would sum to {sum(floors.values())} blocks, "
                f"but the pool has {self._pool_blocks}; lower the floor of {tenant!r}"
            )
        account = self.account(tenant)
        account.quota = own
        if quota is None:
            self._with_own_quota.discard(tenant)
        else:
            self._with_own_quota.add(tenant)
        self._num_floors = sum(floor > 0 for floor in floors.values())
        return account

    def set_default_quota(self, quota: TenantQuota) -> list[TenantAccount]:
        """That of all tenants without one of their own, known or not. Returns whose has changed. O(tenants).

        Raises InvalidArgumentError when it has a floor.
        """
        if quota.floor_blocks:
            raise InvalidArgumentError(
                f"the default quota has a floor of {quota.floor_blocks} blocks, which cannot be promised to "
                "every tenant; give floors to tenants by name"
            )
        self._default_quota = quota
        changed = [
            account
            for account in self.accounts()
            if account.tenant not in self._with_own_quota and account.quota != quota
        ]
        for account in changed:
            account.quota = quota
        return changed

    def has_floors(self, *, besides: TenantAccount) -> bool:
        """Whether any other tenant has blocks that must not be evicted. O(1)."""
        return self._num_floors > (besides.quota.floor_blocks > 0)

    def charge(self, payers: Sequence[TenantAccount], num_blocks: int) -> None:
        """Divide so many public blocks among the payers; a negative number takes them back."""
        if payers:
            num_shares = num_blocks * (SHARES_PER_BLOCK // len(payers))
            for account in payers:
                account.num_shares += num_shares

    def charge_user(self, node: RadixNode, account: TenantAccount) -> None:
        """The account is the latest that pays for a public node. O(payers)."""
        num_blocks = len(node.block_ids)
        self.charge(node.payers, -num_blocks)
        others = [payer for payer in node.payers if payer is not account]
        node.payers = (*others[-(MAX_PAYERS - 1) :], account)
        self.charge(node.payers, num_blocks)

    def forget_cached(self) -> list[Pile]:
        """All nodes are gone; blocks in none yet stay their owners'. O(tenants).

        Returns what held their leaves, to be taken apart.
        """
        piles: list[Pile] = []
        for account in (self.public, *self.accounts()):
            account.num_cached_blocks = 0
            account.num_shares = 0
            piles.append(account.leaves)
            account.leaves = SortedList()
        return piles

    def check(self, nodes: Iterable[RadixNode]) -> None:
        """Raise AssertionError if the invariant is broken, given all nodes of the tree. For tests."""
        num_cached: Counter[TenantAccount] = Counter()
        num_shares: Counter[TenantAccount] = Counter()
        for node in nodes:
            assert (node.owner is self.public) == node.is_public == bool(node.payers)
            num_cached[node.owner] += len(node.block_ids)
            for account in node.payers:
                num_shares[account] += len(node.block_ids) * SHARES_PER_BLOCK // len(node.payers)
        for account in (self.public, *self.accounts()):
            assert account.num_cached_blocks == num_cached[account]
            assert account.num_shares == num_shares[account]
        assert sum(num_shares.values()) == self.public.num_cached_blocks * SHARES_PER_BLOCK
