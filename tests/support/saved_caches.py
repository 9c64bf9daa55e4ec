"""Saving a compared cache, and going on from the file."""

from __future__ import annotations

from math import inf
from pathlib import Path

from support.cache_audit import Found, read_tree
from support.compared_cache import ComparedCache
from support.prefix_oracle import Prefix

WHAT_ROWS_ARE = {"model": "simulated", "layout": "none", "dtype": "tokens"}


def save(compared: ComparedCache, path: Path) -> dict[Prefix, Found]:
    """Returns what has been saved, for `restore`."""
    compared.cache.save(path, **WHAT_ROWS_ARE, write_row=compared.store.write_row)
    compared.compare_tree()
    return read_tree(compared.cache)


def restore(compared: ComparedCache, path: Path, saved: dict[Prefix, Found]) -> None:
    """Fill the empty cache from a snapshot, with what was used last when there is no room for all."""
    free_ids = compared.model.free_ids()
    num_restored = compared.cache.restore(path, **WHAT_ROWS_ARE, read_row=compared.store.read_row)
    found = read_tree(compared.cache)
    assert num_restored == len(found) == min(len(saved), len(free_ids))
    for prefix, block in found.items():
        assert block.block_id in free_ids
        assert (block.payers, block.last_used) == (saved[prefix].payers, saved[prefix].last_used)
        compared.oracle.restore(prefix, block.block_id, block.payers)
    last_uses_of_left = [saved[prefix].last_used for prefix in saved.keys() - found.keys()]
    last_uses = [block.last_used for block in found.values()]
    assert not found or max(last_uses_of_left, default=-inf) <= min(last_uses)


def restart(compared: ComparedCache, folder: Path) -> None:
    """A new process with a snapshot of this one: sequences and pins are gone, cached rows are not."""
    saved = save(compared, folder / "all")
    compared.cache.save(folder / "index")
    index = (folder / "index").read_bytes()
    compared.start_anew(compared.model.quotas)
    restore(compared, folder / "all", saved)
    compared.cache.save(folder / "index")
    assert (folder / "index").read_bytes() == index
