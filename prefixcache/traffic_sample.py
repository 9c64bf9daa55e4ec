"""A sample of the blocks that requests ask for, and how often caches of several kinds would have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from prefixcache.block_keys import KEY_BYTES
from prefixcache.credit_guard import CreditGuard
from prefixcache.policy_state import PolicyState, PolicySwitch
from prefixcache.radix_node import RadixNode
from prefixcache.radix_tree import RadixTree
from prefixcache.shadow_cache import Cohort, Footprint, ShadowCache
from prefixcache.turn_credit import CREDIT_TICKS, TurnCreditPolicy

_MAX_SAMPLED = 256
"""Sampled blocks that the pool holds, at most; half of it, at least, if the pool is larger."""
_LEAST_LEAD = 0.1
"""A switch empties the pool of what the other rule would have kept, so it has to be worth some of it."""
_OTHER_SIZES = (0.5, 2.0, 4.0)
_MAX_FOOTPRINT = 4
_NUM_POOLS_ASKED = 64
"""Hit ratios tell of the latest requests, for half as many to as many times the pool's blocks."""


class TrafficSample:
    """Watches some of the blocks in use, switches the credit of a policy, and estimates hit ratios.

    A block is in the sample by its key, so always or never, and 128 to 256 of a full pool are.
    Shadow caches hold the sample as if the pool were 1, 0.5, 2 or 4 times its size, with credit and
    without. They know by its keys what the tree has lost, which it computes anyway when blocks come
    back. Left aside are partly filled blocks, pins, priorities, quotas, and the room that running
    sequences take.

    Invariants, proved by `check`: a cohort counts the sampled keys that it was the last to use;
    those of `ShadowCache`.
    """

    __slots__ = (
        "_candidates",
        "_cohort_of",
        "_cohorts",
        "_credit",
        "_guard",
        "_inverse_rate",
        "_key_limit",
        "_last_difference",
        "_last_serial",
        "_lru",
        "_max_keys",
        "_num_asked",
        "_num_sampled",
        "_others",
        "_policy",
        "_shadows",
        "_tree",
    )

    def __init__(self, tree: RadixTree, num_blocks: int, policy: TurnCreditPolicy) -> None:
        """Requires: the tree is empty, and nobody else switches the policy."""
        inverse_rate = 1
        while num_blocks > inverse_rate * _MAX_SAMPLED:
            inverse_rate *= 2
        self._key_limit = _key_limit(inverse_rate)
        self._candidates = bytes(first <= self._key_limit[0] for first in range(256))
        """By the first byte of a key: whether it may be less than the limit."""
        self._inverse_rate = inverse_rate
        self._num_sampled = num_blocks / inverse_rate
        self._tree = tree
        self._policy = policy
        self._guard = CreditGuard(CREDIT_TICKS, least_lead=_LEAST_LEAD * self._num_sampled)
        self._lru = self._new_shadow(1)
        self._credit = self._new_shadow(1, CREDIT_TICKS)
        self._others = {size: self._new_shadow(size) for size in _OTHER_SIZES}
        self._shadows = (self._lru, self._credit, *self._others.values())
        self._cohort_of: dict[bytes, Cohort] = {}
        """Of every sampled block that a shadow cache may hold, by key."""
        self._max_keys = self._least_max_keys
        self._cohorts: tuple[tuple[Cohort, int], ...] = ()
        """Those that the path touched last is in, and their sizes."""
        self._last_serial = 0
        self._num_asked = 0
        """Blocks, whether in the sample or not."""
        self._last_difference = 0
        """How many hits credit had more than lru when the latest request came."""

    def touched(self, end: RadixNode, tick: int, *, is_new_use: bool) -> None:
        """The path to the end of a node is used now; `is_new_use` as for `CachedBlocks.touch`.

        O(1) if nothing else has used a part of it since it was used last; O(nodes + sampled blocks).
        """
        num_blocks = end.num_blocks
        if is_new_use:
            self._judge_latest(tick - 1)
            self._num_asked += num_blocks
        footprint = end.footprint
        if footprint is not None and footprint.is_true(num_blocks, end.turn):
            self._cohorts = footprint.cohorts
            for cohort, _ in footprint.cohorts:
                cohort.tick = tick
                if not cohort.is_whole:
                    self._renew(cohort, is_asked=is_new_use)
            return
        keys_by_turn: dict[int, list[bytes]] = {}
        node = end
        while node.parent is not None:
            keys = self._sampled_keys(node, 0)
            if keys:
                keys_by_turn.setdefault(node.turn, []).extend(keys)
            node = node.parent
        self._cohorts = ()
        for turn, keys in keys_by_turn.items():
            self._use(keys, turn, tick, is_asked=is_new_use)
        self._leave_footprint(end)

    def inserted(self, node: RadixNode, num_blocks: int, tick: int) -> None:
        """The last `num_blocks` of a node are new in the tree, behind the path touched last.

        Those of a prompt were asked for: they are hits where a shadow cache still has them.
        O(num_blocks).
        """
        if not node.is_output:
            self._num_asked += num_blocks
        has_keys = bool(node.packed_keys) or num_blocks < len(node.block_ids)
        keys = self._sampled_keys(node, len(node.block_ids) - num_blocks)
        if not has_keys:
            node.packed_keys = b""  # most nodes are never used again: what nobody else needs takes no room
        if keys:
            self._use(keys, node.turn, tick, is_asked=not node.is_output)
        self._leave_footprint(node)

    def clear(self) -> None:
        """The tree is empty; what was counted and learned stays."""
        for shadow in self._shadows:
            shadow.clear()
        self._cohort_of.clear()
        self._cohorts = ()

    def policy_state(self) -> PolicyState:
        """O(1)."""
        switches = tuple(self._guard.switches)
        latest = (
            switches[-1]
            if switches
            else PolicySwitch(0, 0, "credit has not proved to be better than lru yet")
        )
        return PolicyState(
            name=self._policy.name,
            credit_ticks=latest.credit_ticks,
            since_tick=latest.tick,
            reason=latest.reason,
            shadow_hit_ratios={"lru": self._ratio(self._lru), "credit": self._ratio(self._credit)}
            if self._num_asked
            else None,
            switches=switches,
        )

    def hit_ratios(self) -> dict[float, float] | None:
        """By size relative to the pool; see `PrefixCache.estimate_hit_ratios`. O(1)."""
        if not self._num_asked:
            return None
        same_size = self._credit if self._guard.credit_ticks else self._lru
        shadows = sorted([(1.0, same_size), *self._others.items()], key=lambda item: item[0])
        return {size: self._ratio(shadow) for size, shadow in shadows}

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests."""
        num_keys = Counter(self._cohort_of.values())
        for cohort, num in num_keys.items():
            assert cohort.num_blocks == num
        for shadow in self._shadows:
            shadow.check()
            assert all(cohort in num_keys for cohort in shadow)

    @property
    def _least_max_keys(self) -> int:
        return round(2 * max(_OTHER_SIZES) * self._num_sampled)

    def _ratio(self, shadow: ShadowCache) -> float:
        """What is not missed is hit: so it matters little whether a block that all ask for is sampled."""
        return max(0.0, 1 - shadow.num_misses * self._inverse_rate / self._num_asked)

    def _new_shadow(self, size: float, credit_ticks: int = 0) -> ShadowCache:
        return ShadowCache(max(1, round(size * self._num_sampled)), credit_ticks)

    def _sampled_keys(self, node: RadixNode, start: int) -> list[bytes]:
        """The keys of those sampled among a node's blocks from `start` on."""
        keys = self._tree.keys_of(node)
        first_bytes = keys[start * KEY_BYTES :: KEY_BYTES].translate(self._candidates)
        sampled = []
        position = first_bytes.find(1)
        while position >= 0:
            key = keys[(start + position) * KEY_BYTES :][:KEY_BYTES]
            if key < self._key_limit:
                sampled.append(key)
            position = first_bytes.find(1, position + 1)
        return sampled

    def _use(self, keys: Sequence[bytes], turn: int, tick: int, *, is_asked: bool) -> None:
        """Blocks of the path touched last, all of the same turn, are used now. O(keys + log cohorts)."""
        self._last_serial += 1
        cohort = Cohort(self._last_serial, tick, turn, len(keys))
        taken: dict[Cohort, int] = {}
        for former in map(self._cohort_of.get, keys):
            if former is not None:
                taken[former] = taken.get(former, 0) + 1
        for shadow in self._shadows:
            num_misses = shadow.use(taken, cohort)
            if is_asked:
                shadow.num_misses += num_misses
        for former, num_taken in taken.items():
            former.num_blocks -= num_taken
        self._cohort_of.update(dict.fromkeys(keys, cohort))
        self._cohorts += ((cohort, len(keys)),)
        if len(self._cohort_of) > self._max_keys:
            self._forget_dropped()

    def _renew(self, cohort: Cohort, *, is_asked: bool) -> None:
        """The whole cohort is used again, and comes back to where it was dropped. O(log cohorts)."""
        cohort.is_whole = True
        for shadow in self._shadows:
            num_misses = shadow.renew(cohort)
            if is_asked:
                shadow.num_misses += num_misses

    def _leave_footprint(self, end: RadixNode) -> None:
        if len(self._cohorts) <= _MAX_FOOTPRINT:
            end.footprint = Footprint(end.num_blocks, end.turn, self._cohorts)

    def _forget_dropped(self) -> None:
        """Forget the keys of what no shadow cache holds. O(keys), which is O(1) for each new one."""
        held = {cohort for shadow in self._shadows for cohort in shadow}
        for cohort in set(self._cohort_of.values()) - held:
            cohort.num_blocks = 0  # nobody can use it again by its footprint
        self._cohort_of = {key: cohort for key, cohort in self._cohort_of.items() if cohort in held}
        self._max_keys = max(self._least_max_keys, 2 * len(self._cohort_of))

    def _judge_latest(self, tick: int) -> None:
        """Tell the guard what the latest request hit, and do as it says."""
        difference = self._lru.num_misses - self._credit.num_misses
        if self._guard.observe(tick, difference - self._last_difference):
            self._policy.credit_ticks = self._guard.credit_ticks
            for shadow in self._others.values():
                shadow.give_credit(self._guard.credit_ticks)
        if self._num_asked > _NUM_POOLS_ASKED * self._inverse_rate * self._num_sampled:
            self._num_asked //= 2
            for shadow in self._shadows:
                shadow.num_misses //= 2
            difference = self._lru.num_misses - self._credit.num_misses
        self._last_difference = difference


def _key_limit(inverse_rate: int) -> bytes:
    """One in `inverse_rate` keys is less than this. Requires: a power of two."""
    if inverse_rate == 1:
        return b"\xff" * (KEY_BYTES + 1)
    limit: int = 256**KEY_BYTES // inverse_rate
    return limit.to_bytes(KEY_BYTES, "big")
