"""Faults that users met elsewhere, on an engine stepped by hand. Each test is named after its case."""

import pytest
import torch
from support.hand_engine import HandEngine, reference, reference_model, stream
from support.recording_model import RecordingModel

from prefixcache_worker.engine import scheduler
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.request import FinishReason
from prefixcache_worker.errors import InvalidRequestError


def test_b01_blocks_of_live_tables_are_never_free(monkeypatch):
    """Two requests compute the same prefix in one step; a third then takes every free block.

    Without single flight, which would make the second wait. 14 blocks: 4 of the prefix, a tail for
    each of the first two, and 8 for the third.
    """
    monkeypatch.setattr(scheduler, "find_flight", lambda cache, sequence, prefills: None)
    hand = HandEngine(num_blocks=14)
    a, b = stream("a", 64) + stream("b", 5), stream("a", 64) + stream("c", 5)
    first, second = hand.add(a, 40), hand.add(b, 40)
    hand.step()
    blocks = hand.engine.stats().blocks
    assert (blocks.peak_live, blocks.live, blocks.free) == (5 + 5, 4 + 1 + 1, 8)
    [prefix] = hand.cache.dump()
    for request_id in (first, second):
        assert hand.handle(request_id).block_table[:4] == list(prefix.block_ids)
    third = hand.add(stream("d", 128), 40)
    hand.step()
    assert hand.engine.stats().blocks.free == 0
    hand.run()
    assert hand.num_cached(first) == hand.num_cached(second) == 0
    assert hand.tokens(first) == reference(a, 40)
    assert hand.tokens(second) == reference(b, 40)
    assert hand.tokens(third) == reference(stream("d", 128), 40)


def test_b01_what_one_request_writes_while_another_has_it_in_its_prompt():
    """The same duplicates with single flight: the answer of the first is part of the second's prompt."""
    hand = HandEngine()
    answer = reference(stream("a", 60), 30)
    first = hand.add(stream("a", 60), 30)
    while len(hand.tokens(first)) < 8:
        hand.step()
    prompt = stream("a", 60) + answer[:25]
    second = hand.add(prompt, 20)
    hand.step()
    duplicates = hand.handle(first).block_table[4], hand.handle(second).block_table[4]
    while hand.handle(first).num_tokens < 82:
        hand.step()
    assert hand.handle(first).block_table[4] == duplicates[1] != duplicates[0]
    hand.run()
    assert hand.num_cached(second) == 64
    assert hand.tokens(first) == answer
    assert hand.tokens(second) == reference(prompt, 20)


def test_b04_a_half_filled_tail_is_copied_for_each_writer():
    hand = HandEngine()
    hand.generate(stream("a", 40), 1)
    tree = {block_id: hand.block_bytes(block_id) for node in hand.cache.dump() for block_id in node.block_ids}
    tails = [node.block_ids[-1] for node in hand.cache.dump()]
    first = hand.add(stream("a", 40) + stream("b", 4), 8)
    second = hand.add(stream("a", 40) + stream("c", 4), 8)
    four = hand.add(stream("a", 40), 8, n=4)
    while hand.engine.stats().requests.running < 6 or any(
        len(hand.handle(four, i).block_table) * 16 < 41 or hand.handle(four, i).num_tokens < 41
        for i in range(4)
    ):
        hand.step()
    handles = [hand.handle(first), hand.handle(second), *(hand.handle(four, i) for i in range(4))]
    assert len({handle.block_table[2] for handle in handles} | set(tails)) == 6 + len(tails)
    assert len({tuple(handle.block_table[:2]) for handle in handles}) == 1
    for block_id, before in tree.items():
        filled = ~before.isnan()
        assert torch.equal(hand.block_bytes(block_id)[filled], before[filled])
    hand.run()
    assert hand.tokens(first) == reference(stream("a", 40) + stream("b", 4), 8)
    assert hand.tokens(second) == reference(stream("a", 40) + stream("c", 4), 8)
    for i in range(4):
        assert hand.tokens(four, i) == reference(stream("a", 40), 8)
    assert hand.num_cached(first) == hand.num_cached(second) == 40
    assert hand.num_cached(four) == 39


@pytest.mark.parametrize("num_hit", [16, 48, 64])
@pytest.mark.parametrize("num_suffix", [1, 7, 8, 33])
def test_b09_a_prefill_that_resumes_reads_the_cached_rows(num_hit, num_suffix):
    """Positions go on where the hit ends, and the first logits are the cold ones."""
    prompt = stream("a", num_hit) + stream("c", num_suffix)
    cold_model, warm_model = RecordingModel(reference_model()), RecordingModel(reference_model())
    HandEngine(model=cold_model).generate(prompt)
    warm = HandEngine(model=warm_model)
    warm.generate(stream("a", num_hit) + stream("b", 8))
    warm_model.clear()
    request_id = warm.add(prompt, 8)
    warm.run()
    assert warm_model.batches[0].positions.tolist() == list(range(num_hit, num_hit + num_suffix))
    assert (warm_model.logits[0][-1] - cold_model.logits[-1][-1]).abs().max() <= 1e-4
    assert warm.num_cached(request_id) == num_hit
    assert warm.tokens(request_id) == reference(prompt, 8)


def test_b11_only_computed_rows_can_be_hit():
    """The second waits until the first has computed all that they share, so it finds 64 rows, not 32."""
    hand = HandEngine(max_batch_tokens=32)
    first = hand.add(stream("a", 64), 4)
    hand.step()
    assert hand.match([*stream("a", 64), 999]) == 32
    second = hand.add(stream("a", 64) + stream("b", 4), 4)
    hand.run()
    assert hand.tokens(first) == reference(stream("a", 64), 4)
    assert hand.tokens(second) == reference(stream("a", 64) + stream("b", 4), 4)
    assert (hand.num_cached(first), hand.num_cached(second)) == (0, 64)


def test_b11_together_in_one_step():
    hand = HandEngine(max_batch_tokens=32)
    first = hand.add(stream("a", 64), 4)
    second = hand.add(stream("a", 64) + stream("b", 4), 4)
    hand.run()
    assert hand.tokens(first) == reference(stream("a", 64), 4)
    assert hand.tokens(second) == reference(stream("a", 64) + stream("b", 4), 4)
    assert (hand.num_cached(first), hand.num_cached(second)) == (0, 64)


def test_b11_abort_in_the_middle_of_a_block():
    """Hits are exact to the token: the 24 rows that were computed, where whole blocks would give 16."""
    hand = HandEngine(max_batch_tokens=24)
    request_id = hand.add(stream("a", 64))
    hand.step()
    assert hand.engine.cancel(request_id)
    hand.engine.check()
    assert hand.match([*stream("a", 64), 999]) == 24
    second = hand.add([*stream("a", 64), 999], 4)
    hand.run()
    assert hand.num_cached(second) == 24
    assert hand.tokens(second) == reference([*stream("a", 64), 999], 4)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_b13_unwritten_rows_never_reach_an_answer(poison):
    model = RecordingModel(reference_model())
    hand = HandEngine(model=model, poison=poison)
    lengths = [1, 15, 16, 17, 31, 33]
    ids = [hand.add(stream(name, length), 20) for name, length in zip("abcdes", lengths, strict=True)]
    hand.run()
    assert [logits.shape[0] for logits in model.logits] == [6] * 20  # all six in every step
    assert all(logits.isfinite().all() for logits in model.logits)
    for request_id, name, length in zip(ids, "abcdes", lengths, strict=True):
        assert hand.tokens(request_id) == reference(stream(name, length), 20)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 48, 256])
def test_b44_the_same_prompt_again_always_leaves_a_token_to_compute(length):
    hand = HandEngine()
    first = hand.generate(stream("a", length), 4)
    second = hand.add(stream("a", length), 4)
    hand.run()
    assert hand.tokens(second) == first == reference(stream("a", length), 4)
    usage = hand.completions[second].usage
    assert (usage.cached_tokens, usage.computed_tokens) == (length - 1, 1)


@pytest.mark.parametrize("num_chunks", [1, 2, 3])
def test_b45_abort_between_two_prefill_chunks_returns_every_block(num_chunks):
    hand = HandEngine(num_blocks=10, max_batch_tokens=32)
    request_id = hand.add(stream("a", 128))
    for _ in range(num_chunks):
        hand.step()
    assert hand.engine.cancel(request_id)
    hand.engine.check()
    assert hand.engine.stats().blocks.live == 0
    assert not hand.engine.cancel(request_id)
    assert hand.match([*stream("a", 128), 999]) == 32 * num_chunks
    assert hand.generate(stream("b", 128)) == reference(stream("b", 128), 1)
    assert request_id not in hand.completions


def test_b46_a_prompt_larger_than_the_pool_is_refused_and_blocks_nobody():
    hand = HandEngine(num_blocks=8, context_length=512)
    with pytest.raises(InvalidRequestError, match=r"200 tokens.*128"):
        hand.add(stream("a", 200))
    assert hand.generate(stream("b", 20), 3) == reference(stream("b", 20), 3)


def test_b46_an_answer_ends_where_the_pool_does():
    hand = HandEngine(num_blocks=8, context_length=512)
    request_id = hand.add(stream("c", 100), 100)
    hand.run()
    assert hand.tokens(request_id) == reference(stream("c", 100), 28)
    assert hand.finish_reason(request_id) is FinishReason.LENGTH


def test_b83_the_last_block_of_the_context_is_really_there():
    """Rows 96 .. 98 are in block 6 of the table; the rest of it and of the pool is as poisoned as before."""
    hand = HandEngine(context_length=100)
    request_id = hand.add(stream("a", 90), 50)
    hand.step()
    while hand.engine.has_work:
        handle = hand.handle(request_id)
        table, num_tokens = list(handle.block_table), handle.num_tokens
        hand.step()
    assert (len(table), num_tokens) == (7, 98)  # the last step wrote row 98 and ended the request
    assert hand.match([*stream("a", 90), *hand.tokens(request_id)]) == 99
    assert hand.tokens(request_id) == reference(stream("a", 90), 10)
    assert hand.finish_reason(request_id) is FinishReason.LENGTH
    for position, block_id in enumerate(table):
        written = hand.block_bytes(block_id)[:, :, : 99 - 16 * position]
        assert written.isfinite().all()
    assert hand.block_bytes(table[6])[:, :, 3:].isnan().all()
    for block_id in set(range(64)) - set(table):
        assert hand.block_bytes(block_id).isnan().all()


def test_b83_a_context_smaller_than_a_block():
    hand = HandEngine(context_length=7)
    assert hand.generate(stream("a", 3), 50) == reference(stream("a", 3), 4)


def test_b75_prompts_around_the_context_length():
    hand = HandEngine(context_length=128)
    assert len(hand.generate(stream("a", 127), 1)) == 1
    assert len(hand.generate(stream("a", 127), 2)) == 1  # clamped: 128 tokens in all
    for length in (128, 129, 100_000):
        with pytest.raises(InvalidRequestError, match=rf"{length} tokens.*128"):
            hand.add(stream("a", length))
    assert hand.engine.stats().blocks.live == 0


def test_a_failing_model_fails_its_step_and_nothing_else():
    hand = HandEngine(max_batch_tokens=32)
    good = hand.add(stream("a", 20), 30)
    hand.step()

    class Failing(RecordingModel):
        def forward(self, batch, attention):
            if len(self.batches) == 1:
                self.batches.append(batch)
                raise RuntimeError("no luck")
            return super().forward(batch, attention)

    hand.engine._model = Failing(hand.model)
    hand.step()
    hand.step()
    assert str(hand.failures[good]) == "no luck"
    assert hand.engine.stats().blocks.live == 0
    assert hand.generate(stream("a", 20), 5) == reference(stream("a", 20), 5)


def test_an_error_before_the_copies_are_made_publishes_nothing_and_blocks_nobody():
    hand = HandEngine()
    hand.generate(stream("a", 40))
    copy_blocks = hand.store.copy_blocks

    def fail_once(copies):
        hand.store.copy_blocks = copy_blocks
        raise MemoryError("no luck")

    hand.store.copy_blocks = fail_once
    request_id = hand.add(stream("a", 40) + stream("b", 4), 5)
    hand.run()
    assert str(hand.failures[request_id]) == "no luck"
    assert hand.engine.stats().requests.failed == 1
    assert hand.generate(stream("a", 40) + stream("b", 4), 5) == reference(
        stream("a", 40) + stream("b", 4), 5
    )


def test_cancel_at_every_step_gives_everything_back():
    for num_steps in range(12):
        hand = HandEngine(max_batch_tokens=16)
        request_id = hand.add(stream("a", 70), 30, n=3)
        for _ in range(num_steps):
            hand.step()
        hand.engine.cancel(request_id)
        hand.engine.check()
        assert hand.engine.stats().blocks.live == 0
        assert not hand.engine.has_work
        assert hand.generate(stream("a", 70), 5) == reference(stream("a", 70), 5)


def test_preempted_sequences_go_on_where_they_were():
    """A pool for about half of the load: everything finishes, and every answer is the right one."""
    hand = HandEngine(num_blocks=12)
    names = "abcdes"
    ids = [hand.add(stream(name, 40), 40) for name in names]
    hand.run()
    for request_id, name in zip(ids, names, strict=True):
        assert hand.tokens(request_id) == reference(stream(name, 40), 40)
    assert hand.engine.stats().requests.preemptions > 0
    assert hand.engine.stats().tokens.cached == 0  # coming back is no hit


def test_forced_preemption_changes_no_token():
    hand = HandEngine()
    request_id = hand.add(stream("a", 40), 40, n=2)
    for step in range(200):
        if not hand.engine.has_work:
            break
        if step in (3, 7, 8, 23):
            hand.engine.preempt(request_id)
            hand.engine.check()
        hand.step()
    for i in range(2):
        assert hand.tokens(request_id, i) == reference(stream("a", 40), 40)
    assert hand.completions[request_id].usage.completion_tokens == 80


def test_a_burst_of_equal_prompts_computes_the_prefix_once():
    hand = HandEngine(max_batch_tokens=64)
    ids = [hand.add(stream("a", 200) + stream(name, 9), 4) for name in "bcdesu"]
    hand.run()
    for request_id, name in zip(ids, "bcdesu", strict=True):
        assert hand.tokens(request_id) == reference(stream("a", 200) + stream(name, 9), 4)
    num_cached = [hand.num_cached(request_id) for request_id in ids]
    assert num_cached[0] == 0
    assert min(num_cached[1:]) >= 192


def test_tenants_share_only_what_is_public():
    hand = HandEngine()
    system = stream("a", 64)
    hand.generate(system + stream("b", 20), tenant="x", public=64)
    shared = hand.add(system + stream("b", 20), tenant="y", public=64)
    hand.run()
    assert hand.num_cached(shared) == 64
    private = hand.add(system + stream("b", 20), tenant="x", public=64)
    hand.run()
    assert hand.num_cached(private) == 83


def test_without_the_cache_nothing_is_read_and_nothing_left():
    hand = HandEngine(max_batch_tokens=32)
    hand.generate(stream("a", 128))
    before = hand.cache.dump()
    request_id = hand.add(stream("a", 128), 5, use_cache=False)
    hand.run()
    assert hand.num_cached(request_id) == 0
    assert hand.tokens(request_id) == reference(stream("a", 128), 5)
    assert hand.cache.dump() == before


def test_rows_read_are_the_lengths_and_a_shared_run_once():
    hand = HandEngine()
    prefix = stream("a", 320)
    hand.generate(prefix)
    ids = [hand.add(prefix + stream(name, 5), 6) for name in "bcde"]
    hand.step()
    before = hand.engine.stats().tokens
    hand.step()
    after = hand.engine.stats().tokens
    assert after.kv_rows_unshared - before.kv_rows_unshared == 4 * 326
    assert after.kv_rows_read - before.kv_rows_read == 320 + 4 * 6
    assert all(hand.handle(i).block_table[:20] == hand.handle(ids[0]).block_table[:20] for i in ids)


def test_stats_add_up_while_running():
    hand = HandEngine(max_batch_tokens=48)
    for name in "bcde":
        hand.add(stream("a", 60) + stream(name, 10), 5)
    engine: Engine = hand.engine
    while engine.has_work:
        hand.step()
        stats = engine.stats()
        assert stats.blocks.free + stats.blocks.idle + stats.blocks.live == stats.blocks.total
        assert stats.blocks.live <= stats.blocks.live_unshared
        assert stats.tokens.cached + stats.tokens.computed == stats.tokens.prompt
    assert engine.stats().requests.finished == 4
    assert engine.stats().tokens.generated == 20
