"""Saving while the cache goes on: rows that were overwritten meanwhile are never in the file."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cache_runs import NAMESPACE, finish, num_matched, run, start
from support.snapshot_indexes import indexes
from support.token_streams import stream

from prefixcache import BlockId, CacheHandle, Namespace, PrefixCache
from prefixcache.snapshot_index import SnapshotIndex, cut_index, decode_index, encode_index
from prefixcache.token_chunks import TOKEN_BYTES

ROWS = {"model": "m", "layout": "l", "dtype": "d"}
OTHER = Namespace("model", "other")
BLOCK_SIZE = 4


class TokenRows:
    """A store whose rows are the tokens that they stand for, with all before them; the worker's part."""

    def __init__(self, num_blocks: int) -> None:
        self.rows = [b""] * num_blocks

    def compute(self, handle: CacheHandle, tokens: list[int]) -> None:
        """Write what a sequence has to compute, as the worker would after executing the copies."""
        for place, block_id in enumerate(handle.block_table):
            if (place + 1) * BLOCK_SIZE > handle.num_cached_tokens:
                self.rows[block_id] = row_of(tokens, place)

    def read(self, block_id: BlockId) -> bytes:
        return self.rows[block_id].ljust(64, b"\0")

    def restore(self, block_id: BlockId, row: memoryview) -> None:
        self.rows[block_id] = bytes(row).rstrip(b"\0")


def row_of(tokens: list[int], place: int) -> bytes:
    """What the block at a place of a prompt holds."""
    return ",".join(map(str, tokens[: (place + 1) * BLOCK_SIZE])).encode()


PROMPTS = st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=14), st.sampled_from([NAMESPACE, OTHER]))
OPERATIONS = st.one_of(PROMPTS, st.just("finish"), st.just("evict"), st.just("reset"))


class CacheAtWork:
    """A small cache and its rows, on which one thing after the other happens."""

    def __init__(self) -> None:
        self.cache = PrefixCache(num_blocks=8, block_size=BLOCK_SIZE, policy="lru")
        self.store = TokenRows(8)
        self.running: list[tuple[CacheHandle, list[int]]] = []

    def do(self, operation: object) -> None:
        if operation == "reset":
            self.cache.reset()
        elif operation == "evict":
            self.cache.evict(2)
        elif operation == "finish":
            if self.running:
                finish(self.cache, self.running.pop(0)[0])
        elif isinstance(operation, tuple):
            tokens, namespace = operation
            while self.running and self.cache.num_available_blocks < -(-len(tokens) // BLOCK_SIZE) + 1:
                finish(self.cache, self.running.pop(0)[0])
            handle = start(self.cache, tokens, namespace)
            self.store.compute(handle, tokens)
            self.running.append((handle, tokens))


@settings(max_examples=300, deadline=None)
@given(
    before=st.lists(OPERATIONS, max_size=8),
    meanwhile=st.lists(st.lists(OPERATIONS, max_size=3), min_size=8, max_size=8),
)
def test_every_restored_row_is_the_one_of_its_tokens(
    tmp_path_factory: pytest.TempPathFactory, before: list[object], meanwhile: list[list[object]]
) -> None:
    """The saver is driven by hand: around the reading of any row, anything happens."""
    path = tmp_path_factory.mktemp("snapshot") / "file"
    at_work = CacheAtWork()
    for operation in before:
        at_work.do(operation)
    save = at_work.cache.begin_save(**ROWS)
    prompts = [operation for operation in before if isinstance(operation, tuple)]
    turns = iter(meanwhile)

    def read_between_operations(block_id: BlockId) -> bytes:
        for operation in next(turns, []):
            at_work.do(operation)
        row = at_work.store.read(block_id)
        for operation in next(turns, []):
            at_work.do(operation)
        return row

    num_saved = save.write(path, read_between_operations).num_blocks
    save.end()
    at_work.cache.check()

    restored, store = PrefixCache(num_blocks=8, block_size=BLOCK_SIZE, policy="lru"), TokenRows(8)
    assert restored.restore(path, read_row=store.restore, **ROWS) == num_saved
    restored.check()
    for tokens, namespace in prompts:
        match = restored.match([*tokens, 9], namespace)
        for place, block_id in enumerate(match.block_ids):
            assert store.rows[block_id] == row_of(tokens, place)


def test_what_is_freed_and_used_again_is_left_out_with_all_behind_it(tmp_path: Path) -> None:
    cache = PrefixCache(num_blocks=4, policy="lru")
    run(cache, stream("a", 64))
    save = cache.begin_save(**ROWS)
    handle = start(cache, stream("b", 32))  # takes the last two blocks of a
    assert save.write(tmp_path / "file", lambda block_id: b"row").num_blocks == 2
    save.end()
    finish(cache, handle)

    restored = PrefixCache(num_blocks=4, policy="lru")
    restored.restore(tmp_path / "file", read_row=lambda block_id, row: None, **ROWS)
    assert num_matched(restored, [*stream("a", 64), 9]) == 32
    assert num_matched(restored, [*stream("b", 32), 9]) == 0


def test_what_comes_meanwhile_is_in_the_next_one(tmp_path: Path) -> None:
    cache = PrefixCache(num_blocks=8)
    run(cache, stream("a", 16))
    save = cache.begin_save()
    run(cache, stream("b", 16))
    assert save.write(tmp_path / "one").num_blocks == 1
    save.end()
    assert cache.begin_save().write(tmp_path / "two").num_blocks == 2


def test_a_save_that_ended_is_told_no_more(tmp_path: Path) -> None:
    cache = PrefixCache(num_blocks=2)
    run(cache, stream("a", 32))
    save = cache.begin_save()
    save.end()
    cache.evict(2)
    assert save.write(tmp_path / "file").num_blocks == 2


def test_what_is_attached_comes_back_before_anything_is_restored(tmp_path: Path) -> None:
    cache = PrefixCache(num_blocks=2)
    run(cache, stream("a", 32))
    cache.begin_save(attachment=b"beside").write(tmp_path / "file")
    restored, attachments = PrefixCache(num_blocks=2), []

    def refuse(attachment: bytes) -> None:
        attachments.append((attachment, restored.stats().num_idle))
        raise ValueError("unreadable")

    with pytest.raises(ValueError, match="unreadable"):
        restored.restore(tmp_path / "file", read_attachment=refuse)
    assert restored.stats().num_free == 2
    assert restored.restore(tmp_path / "file", read_attachment=attachments.append) == 2
    assert attachments == [(b"beside", 0), b"beside"]


def test_changes_are_counted_as_long_as_there_are_any() -> None:
    cache = PrefixCache(num_blocks=4)
    seen = [cache.num_changes]
    for change in (
        lambda: run(cache, stream("a", 32)),
        lambda: run(cache, stream("a", 32)),
        lambda: cache.evict(1),
        cache.reset,
    ):
        change()
        seen.append(cache.num_changes)
    assert len(set(seen)) == len(seen)
    cache.match(stream("a", 32), NAMESPACE)
    cache.stats()
    assert cache.num_changes == seen[-1]


@settings(max_examples=100, deadline=None)
@given(indexes(), st.data())
def test_a_cut_index_has_exactly_what_lost_nothing_above(index: SnapshotIndex, data: st.DataObject) -> None:
    lost = set(data.draw(st.lists(st.integers(0, max(index.num_blocks - 1, 0)))))
    left, numbers = cut_index(index, lost)
    paths = paths_of(index)
    assert numbers == [number for number, path in enumerate(paths) if not lost & {*path.numbers}]
    assert [path.keys for path in paths_of(left)] == [paths[number].keys for number in numbers]
    assert decode_index(encode_index(left)) == left
    kept_by_age = [first_number for _, first_number in ages_of(index) if first_number in numbers]
    assert [numbers[first_number] for _, first_number in ages_of(left)] == kept_by_age


class BlockPath(NamedTuple):
    """A block and all above it."""

    numbers: tuple[int, ...]
    keys: tuple[tuple[bytes, bytes, bytes], ...]
    """Domain, scope and chunk of each."""


def paths_of(index: SnapshotIndex) -> list[BlockPath]:
    """Of every block, by its number."""
    paths: list[BlockPath] = []
    ends: list[BlockPath] = []
    chunk_bytes = index.block_size * TOKEN_BYTES
    for node in index.nodes:
        path = BlockPath((), ()) if node.parent is None else ends[node.parent]
        for offset in range(0, len(node.edge), chunk_bytes):
            key = (node.domain, node.scope, node.edge[offset : offset + chunk_bytes])
            path = BlockPath((*path.numbers, len(paths)), (*path.keys, key))
            paths.append(path)
        ends.append(path)
    return paths


def ages_of(index: SnapshotIndex) -> list[tuple[int, int]]:
    """Age rank and first block of each node, the oldest first."""
    first_numbers = accumulate((node.num_blocks for node in index.nodes), initial=0)
    return sorted((node.age_rank, first) for node, first in zip(index.nodes, first_numbers, strict=False))
