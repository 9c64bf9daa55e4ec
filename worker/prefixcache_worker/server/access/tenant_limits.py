"""How much a tenant may ask for, and the file that says so."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, NamedTuple

from prefixcache import TenantQuota
from prefixcache_worker.server.access.tenant_names import TENANT_NAME, is_tenant_name

NO_LIMIT = "unlimited"
"""What the file says to take a bound away again that its `[default]` table has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """Bounds on what one tenant asks for and holds. None: no bound.

    Raises ValueError when a value is none of what its comment says.
    """

    requests_per_minute: float | None = None
    """Above 0. Requests that begin, averaged over time."""
    burst_requests: int | None = None
    """At least 1. So many may begin at once after a pause. None: those of one minute."""
    max_live_requests: int | None = None
    """At least 1. Requests that run or wait at the same time."""
    max_priority: int | None = None
    """At least -100. The highest that a request may ask for; one that asks for none has 0, or this."""
    max_cache_priority: int | None = None
    """At least 0. The highest priority that it may ask for what it leaves in the cache."""
    max_pinned_blocks: int | None = None
    """At least 0. Blocks that the tenant's prefixes keep."""
    floor_blocks: int = 0
    """At least 0. Cached blocks that are never evicted for other tenants."""
    ceiling_blocks: int | None = None
    """At least 1, and the floor. Blocks of its own that the tenant may hold."""

    def __post_init__(self) -> None:
        for bound in _BOUNDS:
            value = getattr(self, bound.name)
            if not (bound.allows(value) or (value is None and bound.name in _OPTIONAL)):
                raise ValueError(f"{bound.name} is {value!r}; give {bound.expects}")
        if self.ceiling_blocks is not None and self.ceiling_blocks < self.floor_blocks:
            raise ValueError(
                f"ceiling_blocks is {self.ceiling_blocks}; give at least floor_blocks, {self.floor_blocks}"
            )

    @property
    def quota(self) -> TenantQuota:
        """What of it the cache keeps."""
        return TenantQuota(floor_blocks=self.floor_blocks, ceiling_blocks=self.ceiling_blocks)

    @property
    def burst_size(self) -> float:
        """Requests that may begin at once after a pause, if there is a rate."""
        if self.burst_requests is not None:
            return float(self.burst_requests)
        return max(1.0, self.requests_per_minute or 1.0)


class _Bound(NamedTuple):
    """What a value has to be."""

    name: str
    low: float
    expects: str
    """Completes "give"."""
    is_whole: bool = True

    def allows(self, value: Any) -> bool:
        kinds = int if self.is_whole else int | float
        return isinstance(value, kinds) and not isinstance(value, bool) and self.low <= value < inf


_BOUNDS = (
    _Bound("requests_per_minute", 1e-6, "a number above 0", is_whole=False),
    _Bound("burst_requests", 1, "a whole number of at least 1"),
    _Bound("max_live_requests", 1, "a whole number of at least 1"),
    _Bound("max_priority", -100, "a whole number of at least -100"),
    _Bound("max_cache_priority", 0, "a whole number of at least 0"),
    _Bound("max_pinned_blocks", 0, "a whole number of at least 0"),
    _Bound("floor_blocks", 0, "a whole number of at least 0"),
    _Bound("ceiling_blocks", 1, "a whole number of at least 1"),
)
_OPTIONAL = frozenset(field.name for field in fields(TenantLimits) if field.default is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantTable:
    """The limits of all tenants."""

    default: TenantLimits = field(default_factory=TenantLimits)
    """Of tenants that have no limits of their own."""
    limits_by_tenant: Mapping[str, TenantLimits] = field(default_factory=dict)

    def itself(self) -> TenantTable:
        """For whoever asks for the limits of now: these never change."""
        return self

    def limits_of(self, tenant: str) -> TenantLimits:
        """The tenant's own limits, or the default ones. O(1)."""
        return self.limits_by_tenant.get(tenant, self.default)


NO_LIMITS = TenantTable()


def parse_tenant_table(text: str) -> TenantTable:
    """The limits that a TOML text gives: `[default]`, and `[tenants.NAME]`, which differs from it.

    Raises ValueError, saying what is wrong.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is not valid TOML: {error}") from error
    default_values = tables.pop("default", {})
    tenants = tables.pop("tenants", {})
    if tables:
        raise ValueError(f"unknown key {next(iter(tables))!r}; known are default and tenants")
    default = _limits("default", {}, default_values)
    if default.floor_blocks:
        raise ValueError(
            "default: floor_blocks cannot be promised to every tenant; give it to tenants by name"
        )
    if not isinstance(tenants, dict):
        raise ValueError("tenants is not a table; write [tenants.NAME]")
    for name in tenants:
        if not is_tenant_name(name):
            raise ValueError(f"no tenant is called {name!r}: a name is {TENANT_NAME}")
    return TenantTable(
        default=default,
        limits_by_tenant={
            name: _limits(f"tenants.{name}", default_values, values) for name, values in tenants.items()
        },
    )


def _limits(place: str, default_values: Mapping[str, Any], values: Any) -> TenantLimits:
    if not isinstance(values, dict):
        raise ValueError(f"{place} is not a table; write [{place}]")
    known = [bound.name for bound in _BOUNDS]
    for name in values:
        if name not in known:
            raise ValueError(f"{place}: unknown key {name!r}; known are {', '.join(known)}")
    given: dict[str, Any] = {
        name: None if name in _OPTIONAL and value == NO_LIMIT else value
        for name, value in {**default_values, **values}.items()
    }
    try:
        return TenantLimits(**given)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
