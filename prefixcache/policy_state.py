"""What an eviction policy does at the moment, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class PolicySwitch(NamedTuple):
    """A change of the credit that conversations get for each turn."""

    tick: int
    """Number of the latest request at that time."""
    credit_ticks: int
    """Requests by which a turn makes a block younger from then on; with 0, the policy is lru."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyState:
    """The policy at the moment. Only `auto` ever changes."""

    name: str
    credit_ticks: int
    """As in `PolicySwitch`."""
    since_tick: int
    reason: str
    shadow_hit_ratios: Mapping[str, float] | None
    """What a sample says that `lru` and `credit` would hit; None when no block of it was asked for."""
    switches: tuple[PolicySwitch, ...]
    """The latest ones, the last one last."""

    @classmethod
    def of_fixed(cls, name: str) -> PolicyState:
        """Of a policy that never changes."""
        return cls(
            name=name,
            credit_ticks=0,
            since_tick=0,
            reason="the cache was made with it",
            shadow_hit_ratios=None,
            switches=(),
        )
