"""Decode attention on a GPU: shared reads against our own unshared path, torch SDPA and FlashInfer.

Checks correctness first. Each section runs in a process of its own with a deadline, so that one failure
or one endless compilation does not hide the others' results; what failed is told at the end. All of it ends
within ten minutes.

Usage, from the source tree: PYTHONPATH=.:worker:client python3 tests/benchmarks/gpu_decode.py
       [--quick | --dry-run] [--only SECTION ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from report import Row, print_rows


class Section(NamedTuple):
    """A function of a module of the same folder, and the seconds it may take."""

    module: str
    function: str
    quick_seconds: float
    full_seconds: float


SECTIONS = {
    "machine": Section("gpu_sections.machine", "machine", 60, 60),
    "correctness": Section("gpu_sections.correctness", "correctness", 90, 150),
    "decode": Section("gpu_sections.decode", "decode", 60, 150),
    "ratios": Section("gpu_sections.decode", "ratios", 60, 60),
    "engine": Section("gpu_sections.engine", "engine", 60, 90),
    "tiles": Section("gpu_sections.tiles", "tiles", 60, 90),
}
TOTAL_SECONDS = {"quick": 150.0, "full": 570.0, "dry": 570.0}
LEAST_SECONDS = 5.0


def run_section(name: str, size: str, path: Path) -> None:
    """What the section's own process does: print and write each row as soon as it is known."""
    import torch  # only here, where the interpreter has been asked for if need be
    from gpu_sections.cases import Scope

    device = torch.device("cpu" if size == "dry" else "cuda")
    section = SECTIONS[name]
    with path.open("a", encoding="utf-8") as file:
        for row in getattr(import_module(section.module), section.function)(Scope(device, size)):
            print(f"  {row.name}: {row.value:.4g} {row.unit}  {row.note}", flush=True)
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()


def run_in_process(name: str, size: str, path: Path, limit: float) -> str | None:
    """Run a section; what went wrong, or None."""
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if size == "dry" else {})
    command = [sys.executable, __file__, "--section", name, "--size", size, "--rows", str(path)]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stderr=errors, env=environment)
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = f"stopped after {limit:.0f} s"
        errors.seek(0)
        text = errors.read().strip()
    return f"{name}: {status}\n{text[-6000:]}" if text or status else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const="quick", help="a few shapes")
    size.add_argument(
        "--dry-run", dest="size", action="store_const", const="dry",
        help="tiny shapes in Triton's interpreter, without a GPU: shows only that everything runs",
    )  # fmt: skip
    size.add_argument("--size", choices=TOTAL_SECONDS, default="full", help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--json")
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.section:
        run_section(args.section, args.size, args.rows)
        return
    end = time.monotonic() + TOTAL_SECONDS[args.size]
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        path.touch()
        for name in args.only:
            section = SECTIONS[name]
            limit = section.quick_seconds if args.size == "quick" else section.full_seconds
            limit = min(limit, end - time.monotonic())
            if limit < LEAST_SECONDS:
                failures.append(f"{name}: no time was left")
                continue
            print(f"== {name}", flush=True)
            started = time.monotonic()
            failure = run_in_process(name, args.size, path, limit)
            if failure is not None:
                failures.append(failure)
            print(f"   ({time.monotonic() - started:.0f} s)", flush=True)
        rows = [Row(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    print("\n== failures" if failures else "\n== no failures")
    print("\n".join(failures), flush=True)
    if rows:
        print("== all rows")
        print_rows(rows, args.json)
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
