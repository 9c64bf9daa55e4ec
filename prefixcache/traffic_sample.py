"""A sample of the blocks that requests ask for, and how often caches of several kinds would have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prefixcache.block_keys import KEY_BYTES
from prefixcache.credit_guard import CreditGuard
from prefixcache.policy_state import PolicyState
from prefixcache.radix_node import RadixNode
from prefixcache.radix_tree import RadixTree
from prefixcache.shadow_cache import Cohort, ShadowCache
from prefixcache.turn_credit import CREDIT_TICKS, TurnCreditPolicy

_MAX_SAMPLED = 512
"""Sampled blocks that the pool holds, at most; half of it, at least, if the pool is larger."""
_MAX_STRIDE = 8
_RELATIVE_SIZES = (0.5, 2.0, 4.0)
_NUM_ASKED_KEPT = 64
"""Hit ratios tell of about so many times the sampled blocks of the pool."""


class TrafficSample:
    """Watches some of the blocks in use, switches the credit of a policy, and estimates hit ratios.

    A block is in the sample by its depth and its key, so always or never: every `stride`-th on a
    path, and of these the ones with the lowest keys. Shadow caches hold the sample as if the pool
    were 1, 0.5, 2 or 4 times its size, with and without credit. They know what the tree has lost
    by its keys, which it computes anyway when blocks come back.

    Left aside are partly filled blocks, pins, priorities, quotas, and the room that running
    sequences take; and paths shorter than half a stride.

    Invariants, proved by `check`: a cohort counts the sampled keys that it was the last to use;
    those of `ShadowCache`.
    """

    __slots__ = (
        "_cohort_of",
        "_cohorts",
        "_credit",
        "_guard",
        "_key_limit",
        "_last_difference",
        "_lru",
        "_max_keys",
        "_num_asked",
        "_others",
        "_policy",
        "_shadows",
        "_stride",
        "_tick",
        "_tree",
    )

    def __init__(self, tree: RadixTree, num_blocks: int, policy: TurnCreditPolicy) -> None:
        """Requires: the tree is empty, and nobody else switches the policy."""
        inverse_rate = 1
        while num_blocks > inverse_rate * _MAX_SAMPLED:
            inverse_rate *= 2
        num_sampled = num_blocks / inverse_rate
        self._tree = tree
        self._policy = policy
        self._stride = min(inverse_rate, _MAX_STRIDE)
        self._key_limit = _key_limit(self._stride / inverse_rate)
        self._cohort_of: dict[bytes, Cohort] = {}
        """The request that was the last to use a sampled block, by key; also of some that no shadow holds."""
        self._max_keys = self._least_max_keys = round(2 * max(_RELATIVE_SIZES) * num_sampled)
        self._cohorts: dict[int, Cohort] = {}
        """By turn: of the path touched last."""
        self._tick = 0
        self._lru = ShadowCache(round(num_sampled), 0)
        self._credit = ShadowCache(round(num_sampled), CREDIT_TICKS)
        self._others = {size: ShadowCache(max(1, round(size * num_sampled)), 0) for size in _RELATIVE_SIZES}
        self._shadows = (self._lru, self._credit, *self._others.values())
        self._num_asked = 0
        self._last_difference = 0
        self._guard = CreditGuard(CREDIT_TICKS)
