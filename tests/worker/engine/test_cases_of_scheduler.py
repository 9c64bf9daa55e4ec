"""Faults that users met elsewhere in scheduling, on an engine stepped by hand. Named after their cases."""

from __future__ import annotations

import pytest
from support.hand_engine import GREEDY, HandEngine, reference, reference_model, stream
from support.recording_model import RecordingModel

from prefixcache import Namespace
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.engine.request import (
    Completion,
    Delta,
    FinishReason,
    Request,
    SamplingParams,
    StopConditions,
)
from prefixcache_worker.errors import QueueFullError


@pytest.mark.parametrize("n", [1, 3])
def test_b15_a_stream_goes_on_after_each_preemption_as_if_nothing_had_been(n):
    """Seeded sampling: the state of the random stream survives, and no token comes twice."""
    sampling = SamplingParams(temperature=1, seed=7)
    undisturbed, hand = HandEngine(), HandEngine()
    undisturbed.add(stream("a", 40), 40, request_id="r", sampling=sampling, n=n)
    undisturbed.run()
    hand.add(stream("a", 40), 40, request_id="r", sampling=sampling, n=n)
    for num_outputs in (7, 23):
        while len(hand.tokens("r")) < num_outputs:
            hand.step()
        hand.engine.preempt("r")
        hand.engine.check()
    hand.run()
    for index in range(n):
        assert hand.tokens("r", index) == undisturbed.tokens("r", index)
        assert len(hand.tokens("r", index)) == 40
    usage = hand.completions["r"].usage
    assert (usage.completion_tokens, usage.prompt_tokens, usage.cached_tokens) == (40 * n, 40, 0)
    assert hand.engine.stats().requests.preemptions == 2 * n


@pytest.mark.parametrize("num_outputs", [1, 5])
def test_b48_a_preempted_answer_comes_back_for_the_one_token_it_lacks(num_outputs):
    model = RecordingModel(reference_model())
    hand = HandEngine(model=model, block_size=256, num_blocks=8)
    request_id = hand.add(stream("a", 465), 8)
    while len(hand.tokens(request_id)) < num_outputs:
        hand.step()
    hand.engine.preempt(request_id)
    model.clear()
    hand.step()
    assert model.batches[0].positions.tolist() == [465 + num_outputs - 1]
    hand.run()
    assert hand.tokens(request_id) == reference(stream("a", 465), 8)


def test_b48_a_prompt_preempted_between_chunks_comes_back_for_the_rest():
    model = RecordingModel(reference_model())
    hand = HandEngine(model=model, block_size=256, num_blocks=8, max_batch_tokens=256)
    request_id = hand.add(stream("a", 465), 3)
    hand.step()
    hand.engine.preempt(request_id)
    model.clear()
    hand.step()
    assert model.batches[0].positions.tolist() == list(range(256, 465))
    hand.run()
    assert hand.tokens(request_id) == reference(stream("a", 465), 3)


def test_b59_the_only_answer_ends_where_the_pool_does():
    hand = HandEngine(num_blocks=4)
    request_id = hand.add(stream("a", 32), 100)
    hand.run()
    assert hand.tokens(request_id) == reference(stream("a", 32), 32)
    assert hand.finish_reason(request_id) is FinishReason.LENGTH
    assert hand.generate(stream("b", 16), 2) == reference(stream("b", 16), 2)


def test_b59_all_choices_of_the_only_request_end_where_the_pool_does():
    """Together they outgrow it long before: they go on one after the other."""
    hand = HandEngine(num_blocks=4)
    request_id = hand.add(stream("a", 32), 100, n=3)
    hand.run()
    for index in range(3):
        assert hand.tokens(request_id, index) == reference(stream("a", 32), 32)


def test_b61_a_step_never_has_more_tokens_than_its_budget_and_no_hit_is_in_it():
    """The hits are lost again and again; what a request has been admitted with stays its own."""
    model = RecordingModel(reference_model())
    hand = HandEngine(model=model, max_batch_tokens=64)
    hand.generate(stream("a", 48))
    model.clear()
    prompts = [stream("a", 48) + [500 + 16 * i + j for j in range(16)] for i in range(10)]
    ids = [hand.add(prompt, 4) for prompt in prompts]
    while hand.engine.has_work:
        hand.step()
        hand.cache.evict(1000)
    assert max(len(batch.token_ids) for batch in model.batches) == 64
    num_computed = sum(int((batch.positions < batch.prompt_lengths).sum()) for batch in model.batches)
    assert num_computed == sum(hand.completions[request_id].usage.computed_tokens for request_id in ids)
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert hand.tokens(request_id) == reference(prompt, 4)


def test_b62_without_the_cache_a_prompt_in_chunks_ends_and_leaves_nothing():
    """Also when it has to give way, and then finds nothing of its own."""
    hand = HandEngine(max_batch_tokens=32)
    hand.generate(stream("b", 50))
    before = hand.cache.dump()
    request_id = hand.add(stream("a", 128), 5, use_cache=False)
    other = hand.add(stream("a", 128), 5, use_cache=False)
    for _ in range(3):
        hand.step()
    hand.engine.preempt(request_id)
    hand.run()
    assert hand.tokens(request_id) == hand.tokens(other) == reference(stream("a", 128), 5)
    assert hand.cache.dump() == before


def test_b97_two_that_do_not_fit_together_make_progress():
    def num_steps(*prompts: list[int]) -> int:
        hand = HandEngine(num_blocks=10, max_batch_tokens=32)
        ids = [hand.add(prompt, 60) for prompt in prompts]
        while hand.engine.has_work:
            if all(hand.engine._answers.get(request_id) for request_id in ids):
                oldest = hand.engine._answers[ids[0]].sequences[0]
                was_running = oldest.handle is not None
                hand.step()
                assert not was_running or oldest.handle is not None or ids[0] in hand.completions
            else:
                hand.step()
        for request_id, prompt in zip(ids, prompts, strict=True):
            assert hand.tokens(request_id) == reference(prompt, 60)
        assert hand.engine.stats().requests.preemptions <= 2
        return hand.engine.stats().requests.steps

    first, second = stream("a", 100), stream("b", 80)
    assert num_steps(first, second) <= num_steps(first) + num_steps(second)


def test_b97_many_that_do_not_fit_together_come_back_for_good():
    """Six answers of 80 tokens over a pool for two: nobody gives way again and again."""
    hand = HandEngine(num_blocks=12)
    ids = [hand.add(stream(name, 40), 40) for name in "abcdes"]
    hand.run()
    assert hand.engine.stats().requests.preemptions <= 2 * len(ids)
    assert hand.engine.stats().requests.steps <= 3 * 41 * len(ids)
    assert list(hand.completions) == ids


@pytest.fixture
async def loop():
    hand = HandEngine(max_running=2)
    loop = EngineLoop(hand.engine, max_live_requests=2 + 8, max_waiting_tokens=500)
    yield loop
    await loop.stop(drain_seconds=0)


def request(name: str, length: int, max_tokens: int = 2) -> Request:
    return Request(
        request_id=name,
        namespace=Namespace(model="tiny", tenant="t"),
        prompt_token_ids=tuple(stream(name[0], length)),
        sampling=GREEDY,
        stop_conditions=StopConditions(max_tokens=max_tokens),
    )


async def test_b102_of_a_hundred_arrivals_so_many_are_taken_and_none_of_them_is_dropped(loop):
    """The loop has not started, so that nothing ends in between: two slots and eight places."""
    taken, num_refused = [], 0
    for i in range(100):
        try:
            taken.append(loop.submit(request(f"a{i}", 20)))
        except QueueFullError:
            num_refused += 1
    assert (len(taken), num_refused) == (10, 90)
    loop.start()
    for events in taken:
        kinds = [type(event) async for event in events]
        assert kinds == [Delta, Delta, Completion]


async def test_b102_prompt_tokens_that_wait_are_bounded_too(loop):
    """A prompt is taken whatever its length when no other waits, or it never could be."""
    first = loop.submit(request("a", 300))
    with pytest.raises(QueueFullError, match=r"300 prompt tokens wait, .* 201 more"):
        loop.submit(request("b", 201))
    second = loop.submit(request("b", 200))
    loop.start()
    for events in (first, second):
        assert [type(event) async for event in events][-1] is Completion
    third = loop.submit(request("c", 600))
    assert [type(event) async for event in third][-1] is Completion


async def test_b102_a_prompt_waits_no_more_when_its_answer_has_begun_or_it_is_given_up(loop):
    loop.start()
    async with loop.submit(request("a", 300, max_tokens=4000)) as first:
        await anext(aiter(first))
        async with loop.submit(request("b", 500, max_tokens=4000)):
            pass
        last = loop.submit(request("c", 500))
        assert [type(event) async for event in last][-1] is Completion
