"""Comparing a cache as a whole with its model, its events and the rows it stands for."""

from __future__ import annotations

from typing import NamedTuple

from support.cache_model import CacheModel, Sequence
from support.prefix_oracle import Prefix
from support.simulated_store import SimulatedStore

from prefixcache import HOLE, BlockId, PrefixCache, unpack_tokens
from prefixcache.event_index import EventIndex
from prefixcache.radix_node import RadixNode

NEW_TOKEN = 9  # in no prompt


class Found(NamedTuple):
    """A block of the tree."""

    block_id: BlockId
    payers: tuple[str, ...]
    last_used: int


def read_tree(cache: PrefixCache) -> dict[Prefix, Found]:
    """Every block of the tree under the prefix it stands for."""
    found: dict[Prefix, Found] = {}
    end_of: dict[RadixNode, tuple[tuple[int, ...], int]] = {}  # tokens and public blocks from the root
    for domain, node in cache._tree.nodes():
        assert node.parent is not None
        above, num_public = end_of.get(node.parent, ((), 0))
        tokens = above + tuple(unpack_tokens(node.edge))
        payers = tuple(account.tenant for account in node.payers)
        for index, block_id in enumerate(node.block_ids):
            num_above = num_public + index if node.is_public else num_public
            end = tokens[: len(above) + (index + 1) * cache.block_size]
            prefix = Prefix(domain, node.scope, num_above, end)
            assert prefix not in found
            found[prefix] = Found(block_id, payers, node.last_used)
        end_of[node] = (tokens, num_public + len(node.block_ids) * node.is_public)
    return found


def check_counts(cache: PrefixCache, model: CacheModel) -> None:
    """What the cache tells about itself is what counting again gives."""
    stats = cache.stats()
    assert stats == model.stats(num_nodes=stats.num_nodes)
    assert cache.num_available_blocks == stats.num_free + len(model.idle())
    num_held = sum(cache.num_holders(BlockId(i)) > 0 for i in range(cache.num_blocks))
    assert num_held == cache.num_blocks - cache.num_available_blocks
    assert set(model.counts) <= set(cache.tenants())
    for tenant in cache.tenants():
        assert cache.usage(tenant) == model.usage(tenant)
    pins = sorted(model.deadline_of.items(), key=lambda item: (item[1], item[0].serial))
    assert cache.pins() == [pin for pin, _ in pins]
    assert all(pin.expires_at == deadline and not pin.is_ended for pin, deadline in pins)


def check_everything(cache: PrefixCache, model: CacheModel, store: SimulatedStore, index: EventIndex) -> None:
    """All invariants of the cache, every row that anybody may read, and the index kept by events."""
    cache.check()
    assert cache.stats().num_nodes == len(cache.dump())
    assert len(cache._handles) == len(model.sequences)
    index.check()
    assert dict(index.parent_of) == cache.block_keys()
    assert EventIndex.from_state(cache.event_state()).parent_of == index.parent_of
    whole = [prefix for prefix in model.oracle.block_of if len(prefix.tokens) % cache.block_size == 0]
    assert len(index.parent_of) == len(whole)
    for prefix, block_id in model.oracle.block_of.items():
        _check_cached_rows(store, prefix, block_id, cache.block_size)
    for sequence in model.sequences:
        _check_rows_of(sequence, store, cache.block_size)
    prefix_of = {block_id: prefix for prefix, block_id in model.oracle.block_of.items()}
    for pin in model.deadline_of:
        pinned = prefix_of[pin.block_ids[-1]]
        assert len(pinned.tokens) == pin.num_tokens
        assert cache.match([*pinned.tokens, NEW_TOKEN], pin.namespace).num_tokens == pin.num_tokens


def _check_cached_rows(store: SimulatedStore, prefix: Prefix, block_id: BlockId, block_size: int) -> None:
    start = (len(prefix.tokens) - 1) // block_size * block_size
    table = [block_id] * (start // block_size + 1)
    store.expect(table, prefix.domain, prefix.tokens, range(start, len(prefix.tokens)))


def _check_rows_of(sequence: Sequence, store: SimulatedStore, block_size: int) -> None:
    """Its rows are what it takes them for; the source of a pending copy still has what will be copied."""
    handle, tokens, domain = sequence.handle, sequence.tokens, sequence.handle.namespace.domain
    assert handle.token_ids == tokens
    pending = {handle.block_table.index(copy.target) for copy in handle.copies}
    unreadable = pending | {i for i, block_id in enumerate(handle.block_table) if block_id == HOLE}
    positions = [i for i in range(sequence.num_written) if i // block_size not in unreadable]
    store.expect(handle.block_table, domain, tokens, positions)
    for copy in handle.copies:
        start = handle.block_table.index(copy.target) * block_size
        table = [copy.source] * (start // block_size + 1)
        store.expect(table, domain, tokens, range(start, start + copy.num_slots))
