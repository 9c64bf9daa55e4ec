"""One engine, three ways to keep account of its blocks: the same answers, other costs."""

from __future__ import annotations

import pytest
from support.hand_engine import HandEngine, reference, stream
from support.recording_model import RecordingModel

from prefixcache_worker.engine.request import SamplingParams

SCHEMES = ("contiguous", "paged", "shared")
UNSHARED = ("contiguous", "paged")

scheme_by_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def waste(hand: HandEngine) -> float:
    """The share of the reserved slots that have no token."""
    blocks = hand.engine.stats().blocks
    return 1 - blocks.used_slots / (blocks.live * blocks.block_size)


@scheme_by_scheme
def test_answers_do_not_depend_on_the_scheme(scheme: str):
    """A burst with one beginning, chunks of prefill, and more choices than one."""
    hand = HandEngine(scheme=scheme, num_blocks=96, context_length=192, max_batch_tokens=24)
    prompts = [stream("a", 40) + stream(name, 5) for name in "bcd"]
    ids = [hand.add(prompt, 12) for prompt in prompts]
    three = hand.add(stream("a", 37), 9, n=3)
    hand.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert hand.tokens(request_id) == reference(prompt, 12)
    for index in range(3):
        assert hand.tokens(three, index) == reference(stream("a", 37), 9)


@scheme_by_scheme
def test_seeded_choices_do_not_depend_on_the_scheme(scheme: str):
    """The choices split off from one prompt, shared or copied, and go on differently."""
    sampling = SamplingParams(temperature=1.0, seed=5)
    hand = HandEngine(scheme=scheme, num_blocks=64, context_length=128)
    together = hand.add(stream("a", 21), 20, n=3, sampling=sampling)
    hand.run()
    alone = HandEngine()
    again = alone.add(stream("a", 21), 20, n=3, sampling=sampling)
    alone.run()
    answers = [hand.tokens(together, i) for i in range(3)]
    assert answers == [alone.tokens(again, i) for i in range(3)]
    assert len(set(map(tuple, answers))) == 3


@pytest.mark.parametrize("scheme", UNSHARED)
def test_without_sharing_every_prompt_is_computed_and_read_for_itself(scheme: str):
    """And nobody waits for another's prefill: all of the burst is in the first step."""
    model = RecordingModel(HandEngine().model)
    hand = HandEngine(scheme=scheme, model=model, num_blocks=64, context_length=128)
    ids = [hand.add(stream("a", 40), 4) for _ in range(4)]
    hand.step()
    assert len(model.batches[0].token_ids) == 4 * 40
    hand.run()
    after = hand.generate(stream("a", 40), 4)
    stats = hand.engine.stats()
    assert all(hand.num_cached(request_id) == 0 for request_id in ids)
    assert (stats.tokens.prompt, stats.tokens.cached) == (200, 0)
    assert stats.tokens.kv_rows_read == stats.tokens.kv_rows_unshared
    assert (stats.blocks.idle, stats.blocks.live, stats.blocks.free) == (0, 0, 64)
    assert after == reference(stream("a", 40), 4)
    assert [hand.tokens(request_id) for request_id in ids] == [after] * 4


def test_s08_preallocation_wastes_three_quarters_at_512_of_2048():
    hand = HandEngine(scheme="contiguous", num_blocks=300, context_length=2048)
    first, second = hand.add(stream("a", 512), 9), hand.add(stream("b", 512), 9)
    hand.step()  # max_batch_tokens is 512: the first prompt alone
    assert waste(hand) == 0.75
    hand.step()
    assert waste(hand) == 1 - (513 + 512) / 4096
    assert hand.engine.stats().blocks.live == 2 * 128
    hand.run()
    blocks = hand.engine.stats(reset_peaks=True).blocks
    assert (blocks.peak_live, blocks.live, blocks.used_slots) == (256, 0, 0)
    assert blocks.peak_used_slots > 2 * 512
    assert hand.engine.stats().blocks.peak_used_slots == 0
    assert hand.tokens(first) == reference(stream("a", 512), 9)
    assert hand.tokens(second) == reference(stream("b", 512), 9)


@pytest.mark.parametrize("scheme", ["paged", "shared"])
def test_s08_blocks_on_demand_waste_less_than_one_block_each(scheme: str):
    hand = HandEngine(scheme=scheme, num_blocks=300, context_length=2048)
    hand.add(stream("a", 512), 9)
    hand.step()
    assert waste(hand) == 0
    hand.step()
    assert waste(hand) == 1 - 513 / (33 * 16)


@pytest.mark.parametrize("scheme", ["paged", "shared"])
def test_s20_nothing_is_padded_to_the_longest(scheme: str):
    """Blocks for each length alone, and a step computes and reads the tokens there are."""
    model = RecordingModel(HandEngine().model)
    hand = HandEngine(scheme=scheme, model=model, context_length=128)
    for name, num_tokens in (("a", 3), ("b", 17), ("c", 40)):
        hand.add(stream(name, num_tokens), 2)
    hand.step()
    assert len(model.batches[0].token_ids) == 3 + 17 + 40
    stats = hand.engine.stats()
    assert (stats.blocks.live, stats.blocks.used_slots) == (1 + 2 + 3, 3 + 17 + 40)
    hand.step()
    assert len(model.batches[1].token_ids) == 3
    assert hand.engine.stats().tokens.kv_rows_read == (3 + 17 + 40) + (4 + 18 + 41)


@pytest.mark.parametrize("num_too_many", [0, 1])
@pytest.mark.parametrize(("scheme", "num_fit"), [("contiguous", 4), ("paged", 10), ("shared", 30)])
def test_how_many_requests_fit_one_pool(scheme: str, num_fit: int, num_too_many: int):
    """32 blocks; 48 tokens of a context of 128, the first 32 of them in common.

    So 8 blocks each when preallocated, 3 each when paged, and when shared 2 for all and 1 each.
    """
    hand = HandEngine(scheme=scheme, num_blocks=32, context_length=128, max_running=40, max_batch_tokens=2048)
    prompts = [stream("a", 32) + stream("b", i + 12, i) for i in range(num_fit + num_too_many)]
    ids = [hand.add(prompt, 5) for prompt in prompts]
    hand.run()
    requests = hand.engine.stats().requests
    all_at_once = requests.peak_running == len(ids) and requests.preemptions == 0
    assert all_at_once == (num_too_many == 0)
    assert hand.tokens(ids[-1]) == reference(prompts[-1], 5)


@scheme_by_scheme
def test_a_pool_that_is_too_small_delays_answers_and_changes_none(scheme: str):
    hand = HandEngine(scheme=scheme, num_blocks=8, block_size=4, context_length=28, max_running=8)
    prompts = [stream(name, 10) for name in "abcd"]
    ids = [hand.add(prompt, 16) for prompt in prompts]
    hand.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert hand.tokens(request_id) == reference(prompt, 16)
    has_preempted = hand.engine.stats().requests.preemptions > 0
    assert has_preempted == (scheme != "contiguous")  # what is reserved never runs short


@pytest.mark.parametrize("scheme", UNSHARED)
def test_a_choice_that_cannot_be_copied_yet_waits_for_room(scheme: str):
    """Room for the prompt once, not twice: the second choice computes it again when the first is done."""
    hand = HandEngine(scheme=scheme, num_blocks=5, block_size=4, context_length=20)
    request_id = hand.add(stream("a", 10), 9, n=2)
    hand.step()
    requests = hand.engine.stats().requests
    assert (requests.running, requests.waiting) == (1, 1)
    hand.run()
    for index in range(2):
        assert hand.tokens(request_id, index) == reference(stream("a", 10), 9)
    assert hand.completions[request_id].usage.completion_tokens == 18


@pytest.mark.parametrize("scheme", UNSHARED)
def test_a_preempted_sequence_goes_on_where_it_was(scheme: str):
    hand = HandEngine(scheme=scheme, num_blocks=64, context_length=128)
    request_id = hand.add(stream("a", 40), 20, n=2)
    for _ in range(6):
        hand.step()
    hand.engine.preempt(request_id)
    hand.engine.check()
    assert hand.engine.stats().blocks.free == 64
    hand.run()
    for index in range(2):
        assert hand.tokens(request_id, index) == reference(stream("a", 40), 20)


@pytest.mark.parametrize("scheme", UNSHARED)
def test_a_request_may_end_while_its_choices_are_still_to_be_copied(scheme: str):
    hand = HandEngine(scheme=scheme, num_blocks=64, context_length=128)
    one_token = hand.add(stream("a", 40), 1, n=3)
    cancelled = hand.add(stream("b", 40), 9, n=3)
    hand.step()
    assert len(hand.handle(cancelled, 1).copies) == 3
    assert hand.engine.cancel(cancelled)
    hand.run()
    assert [hand.tokens(one_token, i) for i in range(3)] == [reference(stream("a", 40), 1)] * 3
    assert hand.engine.stats().blocks.free == 64
