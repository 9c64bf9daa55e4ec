"""The faults by their names, which are those of their pages in docs/pitfalls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches

from prefixcache import PrefixCache
from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.diagnosis.worker_settings import settings_by_flag
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.faults import (
    drifting_gauge,
    extra_row,
    growing_copy,
    huge_blocks,
    late_free,
    layout_against_kernel,
    leaked_reference,
    lost_border_hit,
    pad_to_longest,
    pool_too_small,
    scales_left_behind,
    stale_offset,
    tiny_blocks,
    unshared_reads,
    zero_in_hot_path,
)
from prefixcache_worker.server.build import Worker

IN_SETTINGS: dict[str, Callable[[WorkerConfig], WorkerConfig]] = {
    "pool-too-small": pool_too_small.break_settings,
    "tiny-blocks": tiny_blocks.break_settings,
    "huge-blocks": huge_blocks.break_settings,
}
"""Those that are settings nobody should choose."""

UNTOLD = ("pool-too-small",)
"""Those of them that happen behind the settings: what the worker tells of these is what was asked."""

IN_ENGINE: dict[str, Callable[[Engine], None]] = {
    "extra-row": extra_row.plant,
    "stale-offset": stale_offset.plant,
    "growing-copy": growing_copy.plant,
    "late-free": late_free.plant,
    "pad-to-longest": pad_to_longest.plant,
    "zero-in-hot-path": zero_in_hot_path.plant,
    "lost-border-hit": lost_border_hit.plant,
    "scales-left-behind": scales_left_behind.plant,
    "leaked-reference": leaked_reference.plant,
    "layout-against-kernel": layout_against_kernel.plant,
    "drifting-gauge": drifting_gauge.plant,
    "unshared-reads": unshared_reads.plant,
}
"""Those that are in the parts of an engine."""

FAULTS = (*IN_SETTINGS, *IN_ENGINE)

logger = logging.getLogger(__name__)


def break_settings(name: str, config: WorkerConfig) -> WorkerConfig:
    """The settings to build the worker with that `plant` takes next.

    Raises ConfigError for an unknown name.
    """
    if name not in FAULTS:
        close = get_close_matches(name, FAULTS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(FAULTS)}"
        raise ConfigError(f"--plant-fault: there is no fault {name!r}; {hint}")
    healthy = replace(config, plant_fault=None)
    return IN_SETTINGS[name](healthy) if name in IN_SETTINGS else healthy


def plant(name: str, worker: Worker, asked: WorkerConfig) -> None:
    """Break a worker that was built with `break_settings` of what was asked, and say so in the log.

    Requires: it has not started.
    """
    plant_in_engine(name, worker.engine_loop._engine)
    if name in UNTOLD:
        worker.diagnosis.settings = settings_by_flag(replace(asked, plant_fault=None))
    logger.warning("THE FAULT %s IS PLANTED: this worker is broken on purpose, and fit for nobody", name)


def plant_in_engine(name: str, engine: Engine) -> None:
    """Break an engine that has not run yet.

    Requires a name that `break_settings` took. Raises ConfigError when this engine has nothing that could
    break so.
    """
    if name in IN_ENGINE:
        if engine.kv_store.device.type != "cpu" or not isinstance(engine.cache, PrefixCache):
            raise ConfigError(
                f"--plant-fault {name}: it is made for --device cpu and --scheme shared; use these"
            )
        IN_ENGINE[name](engine)
