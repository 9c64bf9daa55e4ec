"""Faults that users met elsewhere in scheduling, on an engine stepped by hand. Named after their cases."""

from __future__ import annotations

from math import ceil

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
from prefixcache_worker.errors import InvalidRequestError, QueueFullError


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


def test_b38_a_block_is_taken_in_the_step_that_writes_its_first_row():
    """After k answers there are L + k - 1 rows, and no block beyond them; every L and k at once."""
    lengths, num_outputs = range(1, 51), range(1, 41)
    hand = HandEngine(num_blocks=320, max_batch_tokens=2048)
    ids = [hand.add(stream("a", length), 41, use_cache=False) for length in lengths]
    found = {}
    for k in num_outputs:
        hand.step()
        for request_id, length in zip(ids, lengths, strict=True):
            assert len(hand.tokens(request_id)) == k
            found[length, k] = len(hand.handle(request_id).block_table)
        assert hand.engine.stats().blocks.live == sum(found[length, k] for length in lengths)
    assert found == {(length, k): ceil((length + k - 1) / 16) for length in lengths for k in num_outputs}
    assert [found[16, k] for k in (1, 2, 17, 18)] == [1, 2, 2, 3]
    assert [found[15, k] for k in (1, 2, 3)] == [1, 1, 2]
    assert found[17, 1] == 2
    hand.run()
    for length in (15, 16, 17):
        assert hand.tokens(ids[length - 1]) == reference(stream("a", length), 41)


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


def pool_of_six() -> HandEngine:
    """A live block, three idle ones that hold a prompt of 48, and two free."""
    hand = HandEngine(num_blocks=6)
    hand.generate(stream("a", 48))
    hand.add(stream("x", 5), 10, request_id="live")
    hand.step()
    blocks = hand.engine.stats().blocks
    assert (blocks.live, blocks.idle, blocks.free) == (1, 3, 2)
    return hand


def test_b55_a_prompts_own_hits_are_no_room_for_it():
    """It needs three blocks beside its three hits, and only two are free: it waits, and nothing changes."""
    hand = pool_of_six()
    prompt = stream("a", 48) + stream("b", 47)
    hand.add(prompt, request_id="waits")
    before = hand.cache.dump()
    while "live" not in hand.completions:
        stats = hand.engine.stats()
        assert (stats.requests.waiting, stats.requests.preemptions, stats.blocks.evicted) == (1, 0, 0)
        assert (stats.blocks.live, stats.blocks.idle, stats.blocks.free) == (1, 3, 2)
        assert hand.cache.dump() == before
        hand.step()
    hand.run()
    assert hand.num_cached("waits") == 48
    assert hand.tokens("waits") == reference(prompt, 1)
    assert hand.tokens("live") == reference(stream("x", 5), 10)
    assert hand.engine.stats().blocks.evicted == 1  # that of the one that was live


def test_b55_a_prompt_that_fits_beside_its_hits_is_admitted_and_evicts_none_of_them():
    hand = pool_of_six()
    prompt = stream("a", 48) + stream("b", 17)
    hand.add(prompt, 5, request_id="fits")
    hand.step()
    stats = hand.engine.stats()
    assert (stats.requests.running, stats.requests.waiting) == (2, 0)
    assert (stats.blocks.live, stats.blocks.free, stats.blocks.evicted) == (6, 0, 0)
    hand.run()
    assert hand.num_cached("fits") == 48
    assert hand.tokens("fits") == reference(prompt, 5)
    assert hand.tokens("live") == reference(stream("x", 5), 10)
    assert not hand.failures


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


@pytest.mark.parametrize("chunk", [16, 512])
def test_b101_choices_get_their_slots_together_or_wait_together(chunk):
    """Four slots, and two requests for three of them: the second has none until the first has ended."""
    hand = HandEngine(max_running=4, max_batch_tokens=chunk)
    ids = [hand.add(stream(name, 70), 8, n=3) for name in "ab"]
    runners = []
    while hand.engine.has_work:
        scheduler = hand.engine._scheduler
        hand.step()
        runners += sorted({sequence.request.request_id for sequence in scheduler.running})
        assert scheduler.num_running in (0, 3)
    assert list(dict.fromkeys(runners)) == ids
    assert runners == sorted(runners), "both at once"
    assert list(hand.completions) == ids
    for request_id, name in zip(ids, "ab", strict=True):
        for index in range(3):
            assert hand.tokens(request_id, index) == reference(stream(name, 70), 8)
    assert hand.engine.stats().requests.preemptions == 0


@pytest.mark.parametrize("num_steps", range(1, 8))
def test_b101_cancelled_while_it_is_admitted_it_gives_back_all_its_slots(num_steps):
    """Its prompt takes five steps, and then it splits; the other, which waited, has its slots at once."""
    hand = HandEngine(max_running=4, max_batch_tokens=16)
    first, second = (hand.add(stream(name, 70), 8, n=3) for name in "ab")
    for _ in range(num_steps):
        hand.step()
    scheduler = hand.engine._scheduler
    assert (scheduler.num_running, len(scheduler.running)) == (3, 1 if num_steps < 5 else 3)
    assert hand.engine.cancel(first)
    assert scheduler.num_running == 0
    assert hand.engine.stats().blocks.live == 0
    hand.step()
    assert [sequence.request.request_id for sequence in scheduler.running] == [second]
    assert scheduler.num_running == 3
    hand.run()
    for index in range(3):
        assert hand.tokens(second, index) == reference(stream("b", 70), 8)


@pytest.fixture
async def loop():
    hand = HandEngine(max_running=2)
    loop = EngineLoop(hand.engine, max_live_requests=2 + 8, max_waiting_tokens=500)
    yield loop
    await loop.stop(drain_seconds=0)


def request(name: str, length: int, max_tokens: int = 2, n: int = 1) -> Request:
    return Request(
        request_id=name,
        namespace=Namespace(model="tiny", tenant="t"),
        prompt_token_ids=tuple(stream(name[0], length)),
        sampling=GREEDY,
        stop_conditions=StopConditions(max_tokens=max_tokens),
        num_choices=n,
    )


async def test_b101_a_request_is_taken_or_refused_with_all_its_choices():
    """One live request at most, and two slots: of two with two choices one is taken; three never fit."""
    hand = HandEngine(max_running=2)
    loop = EngineLoop(hand.engine, max_live_requests=1)
    with pytest.raises(InvalidRequestError, match="3 answers, but at most 2"):
        loop.submit(request("a", 20, n=3))
    taken = loop.submit(request("a", 20, n=2))
    with pytest.raises(QueueFullError):
        loop.submit(request("b", 20, n=2))
    loop.start()
    events = [event async for event in taken]
    assert sorted(event.index for event in events if isinstance(event, Delta)) == [0, 0, 1, 1]
    assert isinstance(events[-1], Completion)
    again = loop.submit(request("b", 20, n=2))
    assert isinstance([event async for event in again][-1], Completion)
    await loop.stop(drain_seconds=0)
    assert hand.engine.stats().requests.finished == 2


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
