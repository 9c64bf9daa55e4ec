"""Random requests on a cache with tiers, against a naive model of what the tiers keep."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from support.chooser import Chooser
from support.tiered_cache import TieredCache
from xxhash import xxh3_64_intdigest

from prefixcache import Namespace, RestoreRule, block_keys
from prefixcache.block_keys import KEY_BYTES

NAMESPACES = [
    *[Namespace("model", "one", is_publisher=True)] * 3,
    Namespace("model", "one", salt="pepper", is_publisher=True),
    *[Namespace("model", "two", is_publisher=True)] * 2,
    Namespace("model", "one", adapter="other", is_publisher=True),
]
MAX_HANDLES = 4
RULES = {
    "all": len,
    "near tiers only": RestoreRule(copy_seconds=(1, 5), compute_seconds=2),
    "far ones if they lead to more": RestoreRule(copy_seconds=(1, 3), compute_seconds=2),
}
OPERATIONS = ["acquire"] * 3 + ["serve"] * 5 + ["finish"] * 2 + ["release", "evict", "settle", "reset"]


class TierMachine(RuleBasedStateMachine):
    has_weak_keys = False

    @initialize(
        num_blocks=st.sampled_from([4, 6, 12]),
        block_size=st.sampled_from([1, 2, 4]),
        tiers=st.sampled_from([[1], [3], [20], [2, 4], [4, 30]]),
        rule_name=st.sampled_from(sorted(RULES)),
    )
    def start(self, num_blocks: int, block_size: int, tiers: list[int], rule_name: str) -> None:
        self.tiered = TieredCache(
            num_blocks=num_blocks,
            block_size=block_size,
            tiers=tiers,
            num_worth_restoring=RULES[rule_name],
            may_miss=self.has_weak_keys,
        )
        self.prompts: list[list[int]] = [[0] * (2 * block_size)]
        self.max_tokens = num_blocks * block_size

    @rule(data=st.data(), operation=st.sampled_from(OPERATIONS))
    def operate(self, data: st.DataObject, operation: str) -> None:
        choose = Chooser(lambda low, high: data.draw(st.integers(low, high), label=operation))
        getattr(self, operation)(choose)
        self.tiered.check()

    def acquire(self, choose: Chooser) -> None:
        if len(self.tiered.num_written) == MAX_HANDLES:
            self.finish(choose)
        known = choose.one_of(self.prompts)
        kept = known[: choose.integer(0, len(known))] if choose.one_in(3) else known
        prompt = (kept + choose.bits(choose.integer(0, 2 * self.tiered.block_size)) or [1])[: self.max_tokens]
        self.prompts = [*self.prompts[-12:], prompt]
        num_public = choose.integer(0, len(prompt)) if choose.one_in(3) else 0
        max_cached = choose.integer(0, len(prompt)) if num_public == 0 and choose.one_in(6) else None
        self.tiered.acquire(prompt, choose.one_of(NAMESPACES), num_public=num_public, max_cached=max_cached)

    def serve(self, choose: Chooser) -> None:
        self.acquire(choose)
        self.finish(choose)

    def finish(self, choose: Chooser) -> None:
        if handles := list(self.tiered.num_written):
            self.tiered.finish(choose.one_of(handles[-2:]), choose.bits(choose.integer(0, 3)))

    def release(self, choose: Chooser) -> None:
        """A request is cancelled before anything was done for it."""
        if handles := list(self.tiered.num_written):
            self.tiered.release(choose.one_of(handles))

    def evict(self, choose: Chooser) -> None:
        self.tiered.evict(choose.integer(0, 4))

    def settle(self, choose: Chooser) -> None:
        self.tiered.settle()

    def reset(self, choose: Chooser) -> None:
        if choose.one_in(4):
            self.tiered.reset()

    def teardown(self) -> None:
        if hasattr(self, "tiered"):
            self.tiered.settle()
            self.tiered.check()


class CollidingTierMachine(TierMachine):
    """Most blocks have the same key as some other."""

    has_weak_keys = True

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(block_keys, "xxh3_128_digest", four_bit_key)

    def teardown(self) -> None:
        super().teardown()
        self._patch.undo()


def four_bit_key(message: bytes) -> bytes:
    return bytes(KEY_BYTES - 1) + bytes([xxh3_64_intdigest(message) & 0xF])


MACHINE_SETTINGS = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

TestTierMachine = TierMachine.TestCase
TestTierMachine.settings = MACHINE_SETTINGS
TestCollidingTierMachine = CollidingTierMachine.TestCase
TestCollidingTierMachine.settings = MACHINE_SETTINGS
