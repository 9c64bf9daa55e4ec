"""Blocks that the pool has no room for come back from tiers, and no answer shows it."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from support.dense_attention import dense_greedy
from support.hand_engine import HandEngine, reference, reference_model, stream
from support.recorded_runs import Logits, RecordedRuns, assert_same
from support.tiny_model import tiny_decoder

from prefixcache import Namespace
from prefixcache_worker.attention.kv_format import choose_format
from prefixcache_worker.attention.tier_store import TierStore
from prefixcache_worker.engine.request import SamplingParams
from prefixcache_worker.model.model import AttentionWindow, Model

PROMPT = stream("a", 100)
PROMPTS = [stream("abcdesuv"[i], 100 + 9 * i) for i in range(6)]
NAMESPACE = Namespace(model="tiny", tenant="t")
NUM_OUTPUT_TOKENS = 4
MODELS = {
    "full": reference_model,
    "windows": cache(lambda: tiny_decoder(windows=(AttentionWindow(40, num_sinks=4), None))),
    "all windowed": cache(lambda: tiny_decoder(windows=(AttentionWindow(24), AttentionWindow(40)))),
}


def fill_pool(engine: HandEngine) -> None:
    """Another prompt takes the whole pool."""
    engine.generate(stream("z", engine.cache.num_blocks * engine.cache.block_size - 1))


def test_a_prompt_that_was_evicted_comes_back_from_the_tier() -> None:
    engine = HandEngine(num_blocks=8, tiers=[8])
    expected = reference(PROMPT, 5)
    assert engine.generate(PROMPT, 5) == expected
    fill_pool(engine)
    assert engine.match(PROMPT) == 0
    request_id = engine.add(PROMPT, 5)
    engine.run()
    assert engine.tokens(request_id) == expected
    assert engine.num_cached(request_id) == engine.num_restored(request_id) == 96
    stats = engine.engine.stats()
    assert (stats.tokens.restored, stats.tokens.cached) == (96, 96)
    (tier,) = stats.tiers
    assert (tier.name, tier.num_blocks, tier.restored) == ("tier 1", 8, 6)


@pytest.mark.parametrize(("num_tokens", "num_restored"), [(95, 80), (96, 95), (97, 96), (112, 111)])
def test_one_token_is_left_to_compute(num_tokens: int, num_restored: int) -> None:
    engine = HandEngine(num_blocks=8, tiers=[8])
    prompt = stream("a", num_tokens)
    engine.generate(stream("a", 112))
    fill_pool(engine)
    request_id = engine.add(prompt, 4)
    engine.run()
    assert engine.tokens(request_id) == reference(prompt, 4)
    assert engine.num_restored(request_id) == num_restored


@cache
def without_tiers(name: str) -> Logits:
    runs = RecordedRuns(PROMPTS, NUM_OUTPUT_TOKENS, model=MODELS[name](), num_blocks=160)
    logits, num_cached = runs.run(use_cache=False)
    assert sum(num_cached) == 0
    return logits


@pytest.mark.parametrize("tiers", [[60], [9, 60]], ids=["one tier", "two tiers"])
@pytest.mark.parametrize("num_together", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_what_comes_from_tiers_changes_no_bit(name: str, num_together: int, tiers: list[int]) -> None:
    runs = RecordedRuns(
        PROMPTS, NUM_OUTPUT_TOKENS, model=MODELS[name](), num_blocks=30, tiers=tiers, max_batch_tokens=64
    )
    how = {"num_together": num_together, "preempt_every": 3 * (num_together - 1)}
    for _ in range(2):
        logits, num_cached = runs.run(**how)
        assert_same(logits, without_tiers(name))
    for prompt, num_tokens in zip(PROMPTS, num_cached, strict=True):
        assert num_tokens >= (len(prompt) - 1) // 16 * 16  # all that pool and tiers could have
    assert runs.hand.engine.stats().tokens.restored > 0


def test_a_prompt_is_not_computed_where_pool_and_tiers_have_it() -> None:
    engine = HandEngine(num_blocks=16, tiers=[100])
    prompts = [stream(name, 140) for name in "abcdesuv"]
    for prompt in prompts:
        engine.generate(prompt)
    before = engine.engine.stats().tokens
    for prompt in prompts:
        request_id = engine.add(prompt)
        engine.run()
        assert engine.num_cached(request_id) >= 128
    after = engine.engine.stats().tokens
    assert after.computed - before.computed <= 8 * 12
    assert after.restored - before.restored >= 7 * 128


def test_a_rule_that_says_compute_is_followed() -> None:
    engine = HandEngine(num_blocks=8, tiers=[8], num_worth_restoring=lambda tiers: min(2, len(tiers)))
    engine.generate(PROMPT)
    fill_pool(engine)
    request_id = engine.add(PROMPT, 3)
    engine.run()
    assert engine.tokens(request_id) == reference(PROMPT, 3)
    assert engine.num_restored(request_id) == 32


def test_choices_share_what_came_back() -> None:
    engine = HandEngine(num_blocks=12, tiers=[12])
    engine.generate(PROMPT)
    fill_pool(engine)
    request_id = engine.add(PROMPT, 3, n=3, sampling=SamplingParams(temperature=0))
    engine.run()
    assert [engine.tokens(request_id, index) for index in range(3)] == [reference(PROMPT, 3)] * 3
    assert engine.num_restored(request_id) == 96


def test_cancelled_before_it_ran_it_leaves_the_rows_to_the_next() -> None:
    """The orders are executed although nobody waits for them any more."""
    engine = HandEngine(num_blocks=8, tiers=[8])
    engine.generate(PROMPT)
    fill_pool(engine)
    request_id = engine.add(PROMPT)
    engine.engine._scheduler.schedule()
    engine.engine.cancel(request_id)
    assert engine.match(PROMPT) == 96
    assert engine.generate(PROMPT, 3) == reference(PROMPT, 3)


def test_blocks_evicted_from_outside_wait_for_the_next_step() -> None:
    engine = HandEngine(num_blocks=8, tiers=[8])
    engine.generate(PROMPT)
    engine.cache.evict(8)
    request_id = engine.add(PROMPT, 3)
    engine.run()
    assert engine.tokens(request_id) == reference(PROMPT, 3)
    assert engine.num_restored(request_id) == 96


def test_a_reset_while_rows_come_back_loses_none_of_them() -> None:
    engine = HandEngine(num_blocks=8, tiers=[8])
    engine.generate(PROMPT)
    fill_pool(engine)
    request_id = engine.add(PROMPT, 3)
    engine.step()
    engine.cache.reset()
    engine.run()
    assert engine.tokens(request_id) == reference(PROMPT, 3)
    assert engine.engine.stats().tiers[0].used_blocks == 0
    assert engine.generate(PROMPT, 3) == reference(PROMPT, 3)


def test_after_a_copy_that_failed_nothing_is_taken_for_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = HandEngine(num_blocks=8, tiers=[8])
    engine.generate(PROMPT)
    fill_pool(engine)
    engine.add(PROMPT)

    def fail(*_: object) -> torch.Tensor:
        raise RuntimeError("no memory left")

    with monkeypatch.context() as patch:
        patch.setattr(TierStore, "read", fail)
        with pytest.raises(RuntimeError, match="no memory left"):
            engine.engine.step()
    engine.engine.fail_all(RuntimeError("given up"))
    engine.engine.check()
    assert engine.cache.dump() == []
    request_id = engine.add(PROMPT, 3)
    engine.run()
    assert engine.tokens(request_id) == reference(PROMPT, 3)
    assert engine.num_cached(request_id) == 0


def test_no_tenant_gets_the_rows_of_another() -> None:
    engine = HandEngine(num_blocks=8, tiers=[16])
    engine.generate(PROMPT, tenant="one")
    fill_pool(engine)
    request_id = engine.add(PROMPT, tenant="two")
    engine.run()
    assert engine.num_cached(request_id) == engine.num_restored(request_id) == 0
    request_id = engine.add(PROMPT, tenant="one", salt="salt")
    engine.run()
    assert engine.num_cached(request_id) == 0


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "int8", "int4"])
def test_rows_of_every_format_come_back_as_they_were(kv_dtype: str) -> None:
    kv_format = choose_format(kv_dtype, None, reference_model().attention_shape)
    engine = HandEngine(num_blocks=8, tiers=[2, 8], kv_format=kv_format)
    expected = HandEngine(num_blocks=8, kv_format=kv_format).generate(PROMPT, 5)
    engine.generate(PROMPT)
    before = [engine.block_bytes(i) for i in engine.cache.match(PROMPT, NAMESPACE).block_ids]
    fill_pool(engine)
    request_id = engine.add(PROMPT, 5)
    engine.run()
    assert engine.num_restored(request_id) == 96
    assert engine.tokens(request_id) == expected
    after = [engine.block_bytes(i) for i in engine.cache.match(PROMPT, NAMESPACE).block_ids]
    assert all(map(lambda a, b: a.equal(b), before, after))


class Traffic:
    """Requests of all kinds on a small pool; every answer has to be the model's."""

    def __init__(self, model: Model, seed: int, tiers: list[int]) -> None:
        self.random = random.Random(seed)
        self.model = model
        self.engine = HandEngine(
            model=model, num_blocks=14, block_size=8, tiers=tiers, max_batch_tokens=32, max_running=6
        )
        self.prompts: dict[str, list[int]] = {}

    def run(self, num_requests: int) -> None:
        while len(self.prompts) < num_requests or self.engine.engine.has_work:
            if len(self.prompts) < num_requests and self.random.random() < 0.5:
                self.add()
            if self.random.random() < 0.1:
                self.disturb()
            self.engine.step()
        for request_id, prompt in self.prompts.items():
            if request_id not in self.engine.completions:
                continue
            expected = dense_greedy(self.model, prompt, 4)
            for index in range(max(1, len({d.index for d in self.engine.deltas[request_id]}))):
                assert self.engine.tokens(request_id, index) == expected
        assert not self.engine.failures

    def add(self) -> None:
        number = self.random.randrange(6)
        prompt = stream("abcdes"[number], self.random.randint(1, 60))
        request_id = self.engine.add(
            prompt,
            4,
            n=self.random.choice([1, 1, 1, 2, 3]),
            tenant=self.random.choice(["one", "two"]),
            public=self.random.choice([0, 0, len(prompt)]),
            priority=self.random.choice([0, 0, 1]),
            use_cache=self.random.random() < 0.9,
        )
        self.prompts[request_id] = prompt

    def disturb(self) -> None:
        alive = list(self.engine.engine._answers)
        match self.random.randrange(4):
            case 0 if alive:
                self.engine.engine.preempt(self.random.choice(alive))
            case 1 if alive:
                self.engine.engine.cancel(self.random.choice(alive))
            case 2:
                self.engine.cache.evict(self.random.randint(1, 14))
            case 3:
                self.engine.cache.reset()


@pytest.mark.parametrize("tiers", [[40], [5, 40], [3]], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_whatever_happens_every_answer_is_the_models(name: str, tiers: list[int]) -> None:
    num_restored = 0
    for seed in range(3):
        traffic = Traffic(MODELS[name](), seed, tiers)
        traffic.run(25)
        num_restored += traffic.engine.engine.stats().tokens.restored
    assert num_restored > 0
