"""A save beside a cache that goes on being used."""

from __future__ import annotations

import os

from prefixcache.block_pool import BlockId, BlockPool
from prefixcache.errors import InvalidArgumentError
from prefixcache.snapshot import RowWriter, SavedSnapshot, save_snapshot
from prefixcache.snapshot_file import HeaderFields
from prefixcache.snapshot_tree import TreeCopy, index_of

_WHAT_ROWS_ARE = ("model", "layout", "dtype")


class RunningSave:
    """What a cache had at one moment, while its rows are written to a file.

    A cached row does not change before its block becomes free. So any thread may read the rows while the
    cache goes on, and whatever has become free meanwhile is left out of the file in the end.
    """

    def __init__(self, tree: TreeCopy, pool: BlockPool, header: HeaderFields, attachment: bytes) -> None:
        """Called by `PrefixCache.begin_save`."""
        self._tree = tree
        self._pool = pool
        self._header = header
        self._attachment = attachment
        self._freed_ids: set[BlockId] = set()
        pool.watch(self._note_freed)

    def write(self, path: str | os.PathLike[str], write_row: RowWriter | None = None) -> SavedSnapshot:
        """Write the file, as `PrefixCache.save` says. Any one thread may call it."""
        unsaid = [field for field in _WHAT_ROWS_ARE if not self._header[field]]
        if write_row is not None and unsaid:
            blank = ", ".join(f"{field} is ''" for field in unsaid)
            raise InvalidArgumentError(f"{blank}; say model, layout and dtype to save rows")
        index, block_ids = index_of(self._tree)
        return save_snapshot(
            path,
            header=self._header,
            index=index,
            block_ids=block_ids,
            write_row=write_row,
            freed_ids=self._freed_ids,
            attachment=self._attachment,
        )

    def end(self) -> None:
        """Note no more what becomes free. Requires: the cache's own thread, and nobody writes."""
        self._pool.unwatch(self._note_freed)

    def _note_freed(self, block_ids: list[BlockId]) -> None:
        self._freed_ids.update(block_ids)
