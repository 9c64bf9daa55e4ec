"""Bad clients by the thousand against one real worker process, of which nothing may be left.

Usage: soak_clients.py [--calls 10000] [--slow 1000] [--hostile 2000] [--seed SEED]

Once with keys, tenants, a tier and a snapshot; a tenth of it again on a worker that is open to everybody.
Exit status: 0, or an AssertionError where something was wrong.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from support.client_faults import ClientFaults, Counts, FaultReport
from support.process_worker import tiny_model_folder

OPEN_SHARE = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000, metavar="N")
    parser.add_argument("--slow", type=int, default=1_000, metavar="N")
    parser.add_argument("--hostile", type=int, default=2_000, metavar="N")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(1_000_000_000) if options.seed is None else options.seed
    counts = Counts(calls=options.calls, slow=options.slow, hostile=options.hostile)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = tiny_model_folder(folder / "model")
        for is_full, part in ((True, counts), (False, counts.share(OPEN_SHARE))):
            print(f"{part}, {'with keys, tier and snapshot' if is_full else 'open'}, seed {seed}", flush=True)
            faults = ClientFaults(
                folder, model, seed=seed, is_full=is_full, progress=partial(print, flush=True)
            )
            show(faults.run(part))
    return 0


def show(report: FaultReport) -> None:
    """The table at the end."""
    for ending, count in sorted(report.tally.endings.items()):
        print(f"{count:>8,} {ending}")
    requests = report.stats.requests
    print(
        f"{requests.finished:,} requests finished, {requests.cancelled:,} cancelled, "
        f"{requests.failed:,} failed; "
        f"{requests.preemptions:,} preemptions, {report.stats.blocks.evicted:,} evictions; "
        f"{report.seconds:.0f} s"
    )
    before, after = report.before, report.after
    print(
        f"memory {before.resident_bytes / 1e6:.1f} -> {after.resident_bytes / 1e6:.1f} MB, "
        f"files {before.num_open_files} -> {after.num_open_files}, "
        f"threads {before.num_threads} -> {after.num_threads}"
    )


if __name__ == "__main__":
    sys.exit(main())
