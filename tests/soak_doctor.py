"""The doctor examines healthy workers on a busy machine, each with other settings: it may find nothing.

Usage: soak_doctor.py [--runs 12] [--burners 3] [--whole] [--model FOLDER] [--seed SEED]

Exit status: 0, or 1 with the report when something was found.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from support.doctor_runs import burners, doctor_run
from support.process_worker import tiny_model_folder

HEALTHY_SETTINGS: dict[str, tuple[str, ...]] = {
    "--attention": ("torch", "auto"),
    "--kv-dtype": ("fp32", "fp16", "bf16", "int8", "int4"),
    "--kv-layout": ("layer-first", "head-first"),
    "--block-size": ("16", "32", "64"),
    "--scheme": ("shared", "shared", "paged"),
    "--window": ("32", "100"),
    "--context-length": ("100", "200"),
    "--max-running": ("2", "64"),
    "--max-batch-tokens": ("32", "512"),
    "--kv-memory": ("64MiB", "512MiB"),
    "--num-threads": ("1", "2"),
}
"""By flag; each is given or left out."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=12, metavar="N")
    parser.add_argument("--burners", type=int, default=3, metavar="N", help="processes that compute beside")
    parser.add_argument("--whole", action="store_true", help="not only quick examinations")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="without it a tiny one")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(1_000_000_000) if options.seed is None else options.seed
    print(f"{options.runs} runs beside {options.burners} busy processes, seed {seed}", flush=True)
    chooser = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, burners(options.burners):
        model = options.model or tiny_model_folder(Path(folder) / "model")
        for number in range(options.runs):
            settings = healthy_settings(chooser)
            run = doctor_run(*settings, model=model, quick=not options.whole)
            print(f"{number + 1}: {' '.join(settings) or 'as it comes'}, {run.seconds:.0f} s", flush=True)
            if run.accused:
                print(run.text)
                return 1
    print("nothing was found, and there was nothing")
    return 0


def healthy_settings(chooser: random.Random) -> list[str]:
    """A worker's arguments with which nothing is wrong."""
    flags = chooser.sample(sorted(HEALTHY_SETTINGS), k=chooser.randint(0, 4))
    return [word for flag in flags for word in (flag, chooser.choice(HEALTHY_SETTINGS[flag]))]


if __name__ == "__main__":
    sys.exit(main())
