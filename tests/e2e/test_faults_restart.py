"""The real process, killed or stopped: it comes back warm, and nothing it says is wrong."""

from __future__ import annotations

from pathlib import Path

from support.killed_worker import LARGE_POOL, SMALL_POOL, KilledWorker


def test_b21_a_killed_worker_comes_back_with_a_whole_snapshot_and_answers_rightly(tmp_path: Path):
    worker = KilledWorker(tmp_path, seed=1)
    for num_blocks in (LARGE_POOL, LARGE_POOL, SMALL_POOL, LARGE_POOL, LARGE_POOL):
        worker.live_and_die(num_blocks=num_blocks)
    worker.stop_well()
    assert worker.num_found > 0
