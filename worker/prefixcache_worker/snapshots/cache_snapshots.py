"""An engine's cache and its snapshot: what is saved, and what may be restored."""

from __future__ import annotations

import logging
from typing import NamedTuple

from prefixcache import (
    BlockId,
    PrefixCache,
    SnapshotDamagedError,
    SnapshotMismatchError,
)
from prefixcache.running_save import RunningSave
from prefixcache.snapshot import SavedSnapshot
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.prefix_book import PrefixRecord
from prefixcache_worker.errors import CacheNotEmptyError, SnapshotFailedError
from prefixcache_worker.snapshots.block_records import BlockRecords
from prefixcache_worker.snapshots.pace import Pace
from prefixcache_worker.snapshots.prefix_records import decode_prefixes, encode_prefixes
from prefixcache_worker.snapshots.snapshot_folder import SnapshotFolder

logger = logging.getLogger(__name__)


class SavedState(NamedTuple):
    """Equal as long as a save would write the same, but for how many seconds prefixes have left."""

    num_changes: int
    prefixes: tuple[tuple[str, str, float | None], ...]
    """Id, label and time to live of each."""


class BegunSave(NamedTuple):
    """What a thread needs to write a snapshot beside the engine."""

    running: RunningSave
    records: BlockRecords
    state: SavedState


class CacheSnapshots:
    """Saves an engine's cache to a folder and restores it. Decides nothing about when.

    What is not of the same model, arithmetic and format is never restored: a hit has to be as good as
    computing.
    """

    def __init__(self, engine: Engine, folder: SnapshotFolder, *, model_build: str, rows_of: str) -> None:
        """`rows_of` names everything but the format that the numbers of a row come from."""
        assert isinstance(engine.cache, PrefixCache)
        self.folder = folder
        self._engine = engine
        self._cache = engine.cache
        self._store = engine.kv_store
        self._model_build = model_build
        self._rows_of = rows_of
        self._state_on_disk = self._state()

    @property
    def is_changed(self) -> bool:
        """Whether a save would write anything else than the last one, or what was restored.

        Requires: the engine's thread. O(prefixes).
        """
        return self._state() != self._state_on_disk

    @property
    def is_engine_busy(self) -> bool:
        """Whether requests may need steps. Any thread may ask."""
        return self._engine.has_requests

    def begin(self) -> BegunSave:
        """Requires: the engine's thread. O(nodes + blocks, and tokens of prefixes)."""
        running = self._cache.begin_save(
            model=self._rows_of,
            layout=self._store.fingerprint,
            dtype=self._store.format.name,
            attachment=encode_prefixes(self._engine.prefixes.records()),
        )
        return BegunSave(running, BlockRecords(self._store), self._state())

    def write(self, save: BegunSave, pace: Pace) -> SavedSnapshot:
        """Write what was begun, on any thread. Raises SnapshotFailedError, or SaveAbandonedError."""

        def write_row(block_id: BlockId) -> memoryview:
            pace()
            return save.records.read(block_id)

        try:
            saved = save.running.write(self.folder.path, write_row)
        except OSError as error:
            raise SnapshotFailedError(f"cannot save the snapshot: {error.strerror}") from error
        self._state_on_disk = save.state
        return saved

    def restore(self) -> int:
        """Fill the empty cache, and return how many blocks it has now.

        Requires: the engine's thread. Raises CacheNotEmptyError, or SnapshotFailedError; nothing is cached
        then. O(bytes).
        """
        num_nodes = self._cache.stats().num_nodes
        if num_nodes:
            raise CacheNotEmptyError(
                f"the cache has {num_nodes} nodes, and a snapshot goes into an empty one; call Reset before"
            )
        records = BlockRecords(self._store)
        prefixes: list[PrefixRecord] = []
        try:
            num_blocks = self._cache.restore(
                self.folder.path,
                model=self._rows_of,
                layout=self._store.fingerprint,
                dtype=self._store.format.name,
                read_row=records.write,
                read_attachment=lambda attachment: prefixes.extend(decode_prefixes(attachment)),
            )
        except FileNotFoundError as error:
            raise SnapshotFailedError("nothing has been saved yet") from error
        except OSError as error:
            raise SnapshotFailedError(f"cannot read the snapshot: {error.strerror}") from error
        except (SnapshotDamagedError, SnapshotMismatchError) as error:
            raise SnapshotFailedError(str(error)) from error
        num_kept = self._engine.prefixes.restore(prefixes, model=self._model_build)
        if num_kept < len(prefixes):
            logger.warning("%d of %d prefixes could not be kept on", len(prefixes) - num_kept, len(prefixes))
        self._state_on_disk = self._state()
        return num_blocks

    def _state(self) -> SavedState:
        prefixes = self._engine.prefixes.records()
        return SavedState(
            self._cache.num_changes,
            tuple((prefix.prefix_id, prefix.label, prefix.ttl_seconds) for prefix in prefixes),
        )

    def restore_at_start(self) -> None:
        """Restore if it can be done, and say in the log what came of it."""
        try:
            self.folder.remove_leftovers()
            if not self.folder.path.exists():
                logger.info("no snapshot in %s: starting with an empty cache", self.folder.path.parent)
                return
            num_blocks = self.restore()
        except (SnapshotFailedError, OSError) as error:
            logger.warning("starting with an empty cache: %s", error)
            return
        logger.info("restored %d blocks from %s", num_blocks, self.folder.path)
