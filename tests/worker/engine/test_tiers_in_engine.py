"""Blocks that the pool has no room for come back from tiers, and no answer shows it."""

from __future__ import annotations

import pytest
from support.hand_engine import HandEngine, reference, stream

PROMPT = stream("a", 100)


def fill_pool(engine: HandEngine) -> None:
    """Other prompts take the whole pool."""
    num_tokens = engine.cache.num_blocks * engine.cache.block_size - 1
    engine.generate(stream("z", num_tokens))


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
