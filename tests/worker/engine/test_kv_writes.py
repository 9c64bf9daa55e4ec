"""What a step writes into the pool: the rows of its tokens, each once, where nothing was."""

from __future__ import annotations

import pytest
import torch
from support.hand_engine import HandEngine, reference, stream

from prefixcache_worker.engine.request import SamplingParams

SCHEMES = ("contiguous", "paged", "shared")


class Canaries:
    """Every slot of a HandEngine that holds no row is NaN; tells which hold one, and watches their bits."""

    def __init__(self, hand: HandEngine) -> None:
        self._hand = hand
        self._before = self._rows()

    def check_step(self) -> None:
        """Run a step. A row that was there is the same, or was freed with its block, which makes it NaN."""
        self._hand.step()
        after = self._rows()
        is_kept = ~(self._before.isnan() | after.isnan())
        assert torch.equal(after[is_kept], self._before[is_kept]), "a row was overwritten"
        self._before = after

    @property
    def written_slots(self) -> set[int]:
        """Slots whose rows are there, whole: in every layer, head and element, of keys and of values."""
        is_written = ~self._before.isnan()
        whole, touched = is_written.all(dim=1), is_written.any(dim=1)
        assert torch.equal(whole, touched), "part of a row"
        return set(whole.nonzero().flatten().tolist())

    def _rows(self) -> torch.Tensor:  # [num_slots, elements of all layers, keys and values]
        store = self._hand.store
        pools = [pool.rows.transpose(0, 1).flatten(1) for pool in (store.keys, store.values)]
        return torch.cat(pools, dim=1)


def computed_slots(hand: HandEngine, *, with_pending_copies: bool) -> set[int]:
    """The slots of all tokens that running sequences have computed, or took over from others."""
    size = hand.cache.block_size
    return {
        sequence.running_handle.block_table[position // size] * size + position % size
        for sequence in hand.engine._scheduler.running
        if with_pending_copies or not sequence.running_handle.copies
        for position in range(sequence.num_computed_tokens)
    }


@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_s05_a_step_appends_its_rows_and_overwrites_none(scheme: str, backend: str):
    """Prefill in chunks, prompts that part inside a block, and choices that split off inside one."""
    hand = HandEngine(scheme=scheme, backend=backend, num_blocks=64, context_length=128, max_batch_tokens=24)
    sampling = SamplingParams(temperature=1.0, seed=5)
    canaries = Canaries(hand)
    assert canaries.written_slots == set()
    arrivals = {0: (stream("a", 40), 1), 5: (stream("a", 27) + stream("b", 8), 3), 9: (stream("c", 16), 1)}
    for step in range(40):
        if step in arrivals:
            prompt, num_choices = arrivals[step]
            hand.add(prompt, 60, n=num_choices, sampling=sampling)
        canaries.check_step()
        written = canaries.written_slots
        assert computed_slots(hand, with_pending_copies=False) <= written
        assert written <= computed_slots(hand, with_pending_copies=True)
    assert hand.engine.stats().requests.running == 5
    hand.run()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_s19_the_pool_neither_grows_nor_moves_and_growing_answers_copy_nothing(scheme: str):
    """Five answers grow through eight blocks each, and fill the pool; then come more than fit."""
    hand = HandEngine(scheme=scheme, num_blocks=40, block_size=4, context_length=32)

    def places() -> list[tuple[int, torch.Size]]:
        tensors = (*hand.store.keys.tensors(), *hand.store.values.tensors())
        return [(tensor.data_ptr(), tensor.shape) for tensor in tensors]

    before = places()
    ids = [hand.add(stream(name, 6), 26) for name in "abcde"]
    hand.run()
    blocks = hand.engine.stats().blocks
    assert (blocks.peak_live, blocks.copied) == (40, 0)
    assert [hand.tokens(request_id) for request_id in ids] == [reference(stream(n, 6), 26) for n in "abcde"]
    ids = [hand.add(stream(name, 7), 25) for name in "abcdesuv"]
    hand.run()
    assert hand.tokens(ids[-1]) == reference(stream("v", 7), 25)
    assert places() == before


@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize("chunk", [7, 512])
def test_b35_rows_lie_where_the_table_says_though_its_blocks_do_not_follow_each_other(
    chunk: int, backend: str
):
    """A hit of two blocks, 20 tokens of prefill and 30 of answer, with blocks 7, 2, 9 and 4."""
    prompt = stream("a", 64) + stream("b", 20)

    def rows_by_position(table: list[int]) -> torch.Tensor:  # [2, layers, 113, kv_heads, head_dim]
        hand = HandEngine(num_blocks=10, block_size=32, max_batch_tokens=chunk, backend=backend)
        others = [block_id for block_id in range(10) if block_id not in table]
        hand.cache._pool._free_ids = [*others, *reversed(table)]  # a stack
        canaries = Canaries(hand)
        hand.generate(stream("a", 64))
        request_id = hand.add(prompt, 30)
        while hand.engine.has_work:
            canaries.check_step()
            if hand.engine.has_work:
                assert (
                    hand.handle(request_id).block_table == table[: len(hand.handle(request_id).block_table)]
                )
        slots = [table[position // 32] * 32 + position % 32 for position in range(64 + 20 + 30 - 1)]
        assert canaries.written_slots == set(slots)
        assert hand.num_cached(request_id) == 64
        assert hand.tokens(request_id) == reference(prompt, 30)
        return torch.stack([pool.rows[:, slots] for pool in (hand.store.keys, hand.store.values)])

    torch.testing.assert_close(
        rows_by_position([7, 2, 9, 4]), rows_by_position([0, 1, 2, 3]), atol=1e-5, rtol=1e-5
    )
