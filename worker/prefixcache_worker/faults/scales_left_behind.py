"""A block that is copied on write leaves the scales of its rows behind.

The codes of the new block then count by whatever scales were there before: a sequence that goes on from
another one's block reads rows that are wrong in size. Only formats with scales in their slots can be broken
so.
"""

from __future__ import annotations

from collections.abc import Iterable

from prefixcache import BlockCopy
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.errors import ConfigError


def plant(engine: Engine) -> None:
    """Copies take rows only. Raises ConfigError where rows have no scales of their own."""
    store = engine.kv_store
    if store.keys.scales is None and store.values.scales is None:
        raise ConfigError(
            f"--plant-fault scales-left-behind: {store.format.name} rows have no scales of their own; "
            "use --kv-dtype int8 or int4 with --kv-scales token-head"
        )

    def copy_rows(copies: Iterable[BlockCopy]) -> None:
        size = store.block_size
        for source, target, num_slots in copies:
            for rows in (store.keys.rows, store.values.rows):
                source_rows = rows[:, source * size : source * size + num_slots]
                rows[:, target * size : target * size + num_slots] = source_rows

    store.copy_blocks = copy_rows  # type: ignore[method-assign]
