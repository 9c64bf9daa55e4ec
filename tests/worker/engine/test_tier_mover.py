"""Moves in groups come to the same as one after the other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prefixcache import BlockId, Place, PrefixCache, TierMove
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.tier_store import TierStore
from prefixcache_worker.engine import tier_mover
from prefixcache_worker.engine.tier_mover import TierMover, batches_of
from prefixcache_worker.model.model import AttentionShape

NUM_PLACES = 4
SHAPE = AttentionShape(num_layers=2, num_query_heads=1, num_kv_heads=1, head_dim=4)

places = st.builds(Place, st.integers(0, 2), st.integers(0, NUM_PLACES - 1))
moves = (
    st.tuples(places, places).filter(lambda ends: ends[0].tier != ends[1].tier).map(lambda e: TierMove(*e))
)


@given(st.lists(moves, max_size=30))
def test_groups_have_the_effect_of_the_sequence(ordered: list[TierMove]) -> None:
    one_by_one = {Place(tier, number): (tier, number) for tier in range(3) for number in range(NUM_PLACES)}
    grouped = dict(one_by_one)
    for source, target in ordered:
        one_by_one[target] = one_by_one[source]
    batches = batches_of(ordered)
    for batch in batches:
        assert len({(move.source.tier, move.target.tier) for move in batch}) == 1
        assert len({move.target for move in batch}) == len(batch)
        grouped |= {target: grouped[source] for source, target in batch}
    assert grouped == one_by_one
    assert sorted(move for batch in batches for move in batch) == sorted(ordered)


def test_moves_of_two_tiers_in_turn_become_two_groups() -> None:
    ordered = [
        move
        for number in range(8)
        for move in (
            TierMove(Place(1, number), Place(2, number)),
            TierMove(Place(0, number), Place(1, number)),
        )
    ]
    assert batches_of(ordered) == [ordered[::2], ordered[1::2]]


@pytest.mark.parametrize("max_copy_bytes", [1, 1 << 30], ids=["one at a time", "all at once"])
@given(ordered=st.lists(moves, max_size=20))
def test_rows_are_where_the_moves_bring_them(max_copy_bytes: int, ordered: list[TierMove]) -> None:
    store = KvStore(SHAPE, num_blocks=NUM_PLACES, block_size=2)
    for block_id in range(NUM_PLACES):
        store.fill_blocks([BlockId(block_id)], block_id)
    stores = [
        TierStore(torch.full((NUM_PLACES, store.record_bytes), 100 * tier, dtype=torch.uint8))
        for tier in (1, 2)
    ]
    for tier in stores:
        for number in range(NUM_PLACES):
            tier.write([number], tier.read([number], store.device) + number)
    everything = [Place(tier, number) for tier in range(3) for number in range(NUM_PLACES)]

    def contents() -> dict[Place, bytes]:
        return {
            place: store.read_blocks([BlockId(place.number)])
            if place.tier == 0
            else stores[place.tier - 1].read([place.number], store.device).numpy().tobytes()
            for place in everything
        }

    expected = contents()
    assert len(set(expected.values())) == len(everything)
    for source, target in ordered:
        expected[target] = expected[source]
    mover = TierMover(PrefixCache(num_blocks=NUM_PLACES, block_size=2), store, stores)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tier_mover, "MAX_COPY_BYTES", max_copy_bytes)
        mover.execute(ordered)
    assert contents() == expected
