"""Kill a worker under load again and again; each time it has to come back whole and answer rightly.

Usage: soak_restart.py [--kills 50] [--seed SEED]
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from support.killed_worker import LARGE_POOL, SMALL_POOL, KilledWorker


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or an AssertionError where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, metavar="N")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(1_000_000_000) if options.seed is None else options.seed
    print(f"{options.kills} kills, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        worker = KilledWorker(Path(folder), seed)
        for number in range(options.kills):
            worker.live_and_die(num_blocks=SMALL_POOL if number % 5 == 2 else LARGE_POOL)
        worker.stop_well()
    print(
        f"killed {options.kills} times, {worker.num_cut_saves} of them in the middle of a save; "
        f"{worker.num_found} prompts were found that had to be, and no answer was wrong"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
