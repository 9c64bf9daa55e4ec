"""Random operations against a simulated KV store and a naive oracle, everything checked after each."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from support.cache_driver import OPERATION_WEIGHTS, CacheDriver
from support.cache_settings import CacheSettings, four_bit_hash
from support.chooser import Chooser
from xxhash import xxh3_64_intdigest

from prefixcache import POLICIES, ChunkHash

OPERATIONS = [name for name, weight in OPERATION_WEIGHTS.items() for _ in range(weight)]


class CacheMachine(RuleBasedStateMachine):
    chunk_hash: ChunkHash = staticmethod(xxh3_64_intdigest)

    @initialize(
        num_blocks=st.sampled_from([10, 24, 300]),
        block_size=st.sampled_from([1, 4, 16]),
        policy=st.sampled_from(POLICIES),
        public_after_tenants=st.sampled_from([None, None, 2]),
        max_pinned_share=st.sampled_from([0.5, 0.2, 1.0]),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        policy: str,
        public_after_tenants: int | None,
        max_pinned_share: float,
    ) -> None:
        self.driver = CacheDriver(
            CacheSettings(
                num_blocks=num_blocks,
                block_size=block_size,
                policy=policy,
                chunk_hash=self.chunk_hash,
                public_after_tenants=public_after_tenants,
                max_pinned_share=max_pinned_share,
            )
        )

    @rule(data=st.data(), operation=st.sampled_from(OPERATIONS))
    def operate(self, data: st.DataObject, operation: str) -> None:
        self.driver.perform(
            operation, Chooser(lambda low, high: data.draw(st.integers(low, high), label=operation))
        )
        self.driver.compared.check()


class CollidingCacheMachine(CacheMachine):
    chunk_hash = staticmethod(four_bit_hash)


MACHINE_SETTINGS = settings(
    max_examples=220,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = MACHINE_SETTINGS
TestCollidingCacheMachine = CollidingCacheMachine.TestCase
TestCollidingCacheMachine.settings = MACHINE_SETTINGS
