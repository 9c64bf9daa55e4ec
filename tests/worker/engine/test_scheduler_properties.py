"""Whatever arrives when: everybody is served, once and rightly, and nobody is overtaken too often."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from support.hand_engine import HandEngine, stream

from prefixcache import TenantQuota
from prefixcache_worker.model.scripted_model import ScriptedModel

SCRIPT = list(range(10, 60))


class Arrival(NamedTuple):
    """A request, and what a client or a test does to it."""

    step: int
    family: str
    num_family_tokens: int
    num_own_tokens: int
    max_tokens: int
    num_choices: int
    priority: int
    tenant: str
    use_cache: bool
    cancelled_after: int | None
    preempted_after: int | None

    def prompt(self, number: int) -> list[int]:
        own = [1000 + 100 * number + i for i in range(self.num_own_tokens)]
        return stream(self.family, self.num_family_tokens) + own


later = st.none() | st.integers(0, 12)
arrivals = st.lists(
    st.builds(
        Arrival,
        step=st.integers(0, 30),
        family=st.sampled_from("ab"),
        num_family_tokens=st.sampled_from([0, 7, 8, 24, 40]),
        num_own_tokens=st.integers(1, 10),
        max_tokens=st.integers(1, 12),
        num_choices=st.sampled_from([1, 1, 1, 2, 3]),
        priority=st.sampled_from([0, 0, 0, 1, -3]),
        tenant=st.sampled_from("xxy"),
        use_cache=st.sampled_from([True, True, True, False]),
        cancelled_after=later,
        preempted_after=later,
    ),
    max_size=24,
)
engines = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(8, 20),  # the longest prompt and answer have 62 tokens
        "max_batch_tokens": st.sampled_from([1, 5, 16, 64]),
        "max_running": st.integers(3, 6),
        "max_overtakes": st.sampled_from([0, 1, 3, 50]),
    }
)


class Run:
    """A run of arrivals on an engine, with what a bystander sees of it."""

    def __init__(self, hand: HandEngine, requests: list[Arrival]) -> None:
        self.hand = hand
        self.requests = requests
        self.ended: set[str] = set()
        self.cancelled: set[str] = set()
        self.overtakes: Counter[str] = Counter()
        self._running: set[str] = set()
        self._arrived: dict[str, int] = {}  # request id: step

    def run(self) -> None:
        order = sorted(range(len(self.requests)), key=lambda i: self.requests[i].step)
        num_tokens = sum(62 * request.num_choices for request in self.requests)
        for step in range(100 + 5 * num_tokens):
            while order and self.requests[order[0]].step <= step:
                self._add(order.pop(0), step)
            self._interfere(step)
            if self.hand.engine.has_work:
                self.hand.step()
                self._observe()
            elif not order:
                return
        raise AssertionError(f"{self._arrived.keys() - self.ended} are not served")

    def _add(self, number: int, step: int) -> None:
        request = self.requests[number]
        request_id = self.hand.add(
            request.prompt(number),
            request.max_tokens,
            request_id=str(number),
            tenant=request.tenant,
            n=request.num_choices,
            priority=request.priority,
            use_cache=request.use_cache,
        )
        self._arrived[request_id] = step

    def _interfere(self, step: int) -> None:
        for request_id, arrived in self._arrived.items():
            request = self.requests[int(request_id)]
            if request_id not in self.ended and request.preempted_after == step - arrived:
                self.hand.engine.preempt(request_id)
                self._running.discard(request_id)
            if request_id not in self.ended and request.cancelled_after == step - arrived:
                assert self.hand.engine.cancel(request_id)
                self.cancelled.add(request_id)
                self.ended.add(request_id)
        self.hand.engine.check()

    def _observe(self) -> None:
        """Count for each that waited all the step those that came later and have begun to run in it."""
        running = {s.request.request_id for s in self.hand.engine._scheduler.running}
        ended = self.hand.completions.keys() | self.hand.failures.keys()
        started = (running | (ended - self.ended)) - self._running
        order = list(self._arrived)
        for request_id in order:
            if request_id not in self._running | running | ended | self.ended:
                self.overtakes[request_id] += len(started & set(order[order.index(request_id) + 1 :]))
        self._running = running
        self.ended |= ended


@settings(deadline=None, max_examples=60)
@given(arrivals, engines)
def test_everybody_is_served_rightly_and_nobody_is_overtaken_too_often(requests, limits):
    run = Run(make_engine(limits), requests)
    run.run()
    hand = run.hand
    assert len(hand.completions) + len(run.cancelled) == len(requests)
    for request_id in hand.completions:
        request = requests[int(request_id)]
        for index in range(request.num_choices):
            assert hand.tokens(request_id, index) == SCRIPT[: request.max_tokens]
        usage = hand.completions[request_id].usage
        assert usage.completion_tokens == request.num_choices * request.max_tokens
    assert max(run.overtakes.values(), default=0) <= limits["max_overtakes"]
    assert hand.engine.stats().blocks.live == 0


@settings(deadline=None, max_examples=40)
@given(arrivals, engines, st.integers(1, 12), st.integers(0, 6))
def test_with_ceilings_and_floors_each_request_ends_once(requests, limits, ceiling_blocks, floor_blocks):
    """Rightly, or with a typed error when the bounds leave no room for it."""
    quotas = {
        "x": TenantQuota(ceiling_blocks=ceiling_blocks),
        "y": TenantQuota(floor_blocks=floor_blocks),
    }
    run = Run(make_engine(limits, quotas), requests)
    run.run()
    hand = run.hand
    ended = [*hand.completions, *hand.failures, *run.cancelled]
    assert sorted(ended, key=int) == [str(number) for number in range(len(requests))]
    for request_id in hand.completions:
        request = requests[int(request_id)]
        for index in range(request.num_choices):
            assert hand.tokens(request_id, index) == SCRIPT[: request.max_tokens]
    for error in hand.failures.values():
        assert type(error).__name__ in ("QuotaExceededError", "OutOfBlocksError")
    assert hand.engine.stats().blocks.live == 0


def make_engine(limits: dict[str, int], quotas: dict[str, TenantQuota] | None = None) -> HandEngine:
    model = ScriptedModel(SCRIPT, vocabulary_size=100, eos_token_id=99)
    return HandEngine(model=model, block_size=8, quotas=quotas, **limits)
