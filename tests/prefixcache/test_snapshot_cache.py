"""Snapshots of live caches: what was saved is what is found again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cache_runs import NAMESPACE, num_matched, run, start
from support.token_streams import stream

from prefixcache import (
    BlockId,
    EventLog,
    InvalidArgumentError,
    Namespace,
    PrefixCache,
    SnapshotDamagedError,
    SnapshotMismatchError,
)

X = [9]
ROWS = {"model": "m", "layout": "head first", "dtype": "float32"}
OTHER = Namespace("model", "other", is_publisher=True)
OTHER_MODEL = Namespace("other model", "tenant", is_publisher=True)


class Rows:
    """A KV store: one number a block."""

    def __init__(self, num_blocks: int) -> None:
        self.values = [0] * num_blocks

    def write_row(self, block_id: BlockId) -> bytes:
        return self.values[block_id].to_bytes(8, "little")

    def read_row(self, block_id: BlockId, row: memoryview) -> None:
        self.values[block_id] = int.from_bytes(row, "little")


def filled(num_blocks: int = 40, policy: str = "lru") -> PrefixCache:
    cache = PrefixCache(num_blocks=num_blocks, policy=policy)
    run(cache, stream("s", 40) + stream("a", 30), num_public_tokens=40)
    run(cache, stream("s", 40) + stream("b", 30), OTHER, num_public_tokens=40)
    run(cache, stream("s", 40) + stream("a", 30) + stream("c", 5))
    run(cache, stream("a", 64), OTHER_MODEL)
    return cache


@pytest.mark.parametrize("policy", ["auto", "lru", "fifo", "lfu", "slru", "arc", "cost"])
def test_save_load_save_is_identical(tmp_path: Path, policy: str) -> None:
    cache = filled(policy=policy)
    cache.save(tmp_path / "one", model="m")
    restored = PrefixCache(num_blocks=40, policy=policy)
    assert restored.restore(tmp_path / "one", model="m") == cache.stats().num_idle
    restored.check()
    restored.save(tmp_path / "two", model="m")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert restored.block_keys() == cache.block_keys()


def test_what_was_cached_hits_again_for_the_same_owners_only(tmp_path: Path) -> None:
    cache = filled()
    cache.save(tmp_path / "file")
    restored = PrefixCache(num_blocks=40)
    restored.restore(tmp_path / "file")
    for prompt in (stream("s", 40) + stream("a", 30) + X, stream("s", 40) + stream("b", 30) + X):
        for namespace in (NAMESPACE, OTHER, OTHER_MODEL):
            assert num_matched(restored, prompt, namespace) == num_matched(cache, prompt, namespace)
    assert [restored.usage(tenant) for tenant in ("tenant", "other")] != []
    for tenant in ("tenant", "other"):
        assert restored.usage(tenant).num_charged_blocks == cache.usage(tenant).num_charged_blocks
        assert restored.usage(tenant).num_cached_blocks == cache.usage(tenant).num_cached_blocks


def test_the_order_of_eviction_survives(tmp_path: Path) -> None:
    """B86: the same keys and the same order of age."""
    cache = filled()
    cache.save(tmp_path / "file")
    restored = PrefixCache(num_blocks=40, policy="lru")
    restored.restore(tmp_path / "file")
    while cache.stats().num_idle:
        assert cache.evict(1) == restored.evict(1) == 1
        assert restored.block_keys() == cache.block_keys()
        restored.check()


def test_b86_rows_come_back_with_their_blocks(tmp_path: Path) -> None:
    cache, rows = filled(), Rows(40)
    for node in cache.dump():
        for i, block_id in enumerate(node.block_ids):
            rows.values[block_id] = hash(node.token_ids[i * 16 : (i + 1) * 16]) % 2**40
    cache.save(tmp_path / "file", write_row=rows.write_row, **ROWS)
    restored, new_rows = PrefixCache(num_blocks=30), Rows(30)
    start(restored, stream("z", 33))  # so that the ids are others
    assert restored.restore(tmp_path / "file", read_row=new_rows.read_row, **ROWS) == cache.stats().num_idle
    restored.check()
    for node in restored.dump():
        for i, block_id in enumerate(node.block_ids):
            assert new_rows.values[block_id] == hash(node.token_ids[i * 16 : (i + 1) * 16]) % 2**40


@pytest.mark.parametrize("num_blocks", range(1, 14))
def test_a_smaller_pool_takes_what_was_used_last(tmp_path: Path, num_blocks: int) -> None:
    cache = filled()
    cache.save(tmp_path / "file")
    num_saved = cache.stats().num_idle
    restored = PrefixCache(num_blocks=num_blocks)
    assert restored.restore(tmp_path / "file") == min(num_blocks, num_saved)
    restored.check()
    ages = {node.token_ids: node.last_used for node in cache.dump()}
    kept = [node.last_used for node in restored.dump()]
    left = [age for age in ages.values() if age not in kept]
    assert not left or min(kept) >= max(left)


def test_restored_blocks_are_told_to_the_events(tmp_path: Path) -> None:
    cache = filled()
    cache.save(tmp_path / "file")
    log = EventLog(100)
    restored = PrefixCache(num_blocks=40, events=log)
    restored.restore(tmp_path / "file")
    keys = [key for event in log.since(1) for key in event.block_keys]
    assert sorted(keys) == sorted(cache.block_keys())


@pytest.mark.parametrize("field", ["model", "layout", "dtype"])
def test_b18_another_build_is_refused_and_nothing_changes(tmp_path: Path, field: str) -> None:
    filled().save(tmp_path / "file", **{field: "one"})
    restored = PrefixCache(num_blocks=40)
    with pytest.raises(SnapshotMismatchError, match=f"{field}.*'one'.*'two'"):
        restored.restore(tmp_path / "file", **{field: "two"})
    assert restored.stats().num_free == 40


def test_another_block_size_or_secret_is_refused(tmp_path: Path) -> None:
    filled().save(tmp_path / "file")
    with pytest.raises(SnapshotMismatchError, match="block_size"):
        PrefixCache(num_blocks=40, block_size=8).restore(tmp_path / "file")
    with pytest.raises(SnapshotMismatchError, match="secret_id"):
        PrefixCache(num_blocks=40, key_secret=b"other").restore(tmp_path / "file")


def test_b21_a_damaged_row_changes_nothing(tmp_path: Path) -> None:
    cache, rows = filled(), Rows(40)
    rows.values = [0x5A5A5A5A5A + i for i in range(40)]
    cache.save(tmp_path / "file", write_row=rows.write_row, **ROWS)
    damaged = bytearray((tmp_path / "file").read_bytes())
    last_row = damaged.rindex(b"\x5a\x5a\x5a")
    damaged[last_row] ^= 1
    (tmp_path / "file").write_bytes(damaged)
    restored = PrefixCache(num_blocks=40)
    with pytest.raises(SnapshotDamagedError, match="row"):
        restored.restore(tmp_path / "file", read_row=Rows(40).read_row, **ROWS)
    assert restored.stats().num_free == 40
    restored.check()


def test_rows_and_their_reader_belong_together(tmp_path: Path) -> None:
    filled().save(tmp_path / "without")
    filled().save(tmp_path / "with", write_row=Rows(40).write_row, **ROWS)
    cache = PrefixCache(num_blocks=40)
    with pytest.raises(InvalidArgumentError, match="without rows"):
        cache.restore(tmp_path / "without", read_row=Rows(40).read_row)
    with pytest.raises(InvalidArgumentError, match="with rows"):
        cache.restore(tmp_path / "with", **ROWS)
    assert cache.stats().num_free == 40


def test_rows_are_not_saved_without_saying_what_they_are(tmp_path: Path) -> None:
    for field in ROWS:
        with pytest.raises(InvalidArgumentError, match=f"{field} is ''; say"):
            filled().save(tmp_path / "file", write_row=Rows(40).write_row, **{**ROWS, field: ""})
    assert not (tmp_path / "file").exists()


def test_chunks_whose_place_is_taken_are_left_out(tmp_path: Path) -> None:
    cache = filled()
    run(cache, stream("d", 64))
    run(cache, stream("e", 64) + stream("d", 16))
    cache.save(tmp_path / "file")
    restored = PrefixCache(num_blocks=40, chunk_hash=lambda chunk: 0)
    num_blocks = restored.restore(tmp_path / "file")
    restored.check()
    assert num_blocks == restored.stats().num_idle == cache.stats().num_idle - 4


def test_a_cache_that_is_not_empty_is_not_restored_into(tmp_path: Path) -> None:
    cache = filled()
    cache.save(tmp_path / "file")
    before = cache.dump()
    with pytest.raises(InvalidArgumentError, match="reset"):
        cache.restore(tmp_path / "file")
    assert cache.dump() == before
    cache.reset()
    assert cache.restore(tmp_path / "file") == sum(len(node.block_ids) for node in before)
    cache.check()


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=20),
            st.sampled_from([NAMESPACE, OTHER, OTHER_MODEL]),
            st.integers(0, 20),
        ),
        max_size=8,
    )
)
def test_any_cache_restored_is_the_same_cache(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[tuple[list[int], Namespace, int]]
) -> None:
    folder = tmp_path_factory.mktemp("snapshot")
    cache = PrefixCache(num_blocks=24, block_size=4, policy="lru")
    for prompt, namespace, num_public in prompts:
        run(cache, prompt, namespace, num_public_tokens=min(num_public, len(prompt)))
    cache.save(folder / "one")
    restored = PrefixCache(num_blocks=24, block_size=4, policy="lru")
    restored.restore(folder / "one")
    restored.check()
    restored.save(folder / "two")
    assert (folder / "one").read_bytes() == (folder / "two").read_bytes()
    for prompt, namespace, _ in prompts:
        assert num_matched(restored, prompt, namespace) == num_matched(cache, prompt, namespace)
