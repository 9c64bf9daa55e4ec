"""The doctor: every planted fault found and named, healthy workers left alone, and how long it takes."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from report import Row

from prefixcache_worker.faults.planting import FAULTS

sys.path.insert(0, str(Path(__file__).parents[2]))  # for `support`, as pytest has it
from support.doctor_runs import NEEDED_BY_FAULT, DoctorRun, doctor_run
from support.process_worker import tiny_model_folder

NUM_CLEAN_RUNS, NUM_LARGE_CLEAN_RUNS = 20, 3
LARGE_FAULTS = frozenset({"extra-row", "growing-copy", "zero-in-hot-path", "pool-too-small"})
"""Planted with the built-in model; the others with a tiny one, whose counts tell as much."""


def doctor_rows() -> list[Row]:
    """One examination for each planted fault, then clean ones, each of a fresh worker. Some minutes."""
    with tempfile.TemporaryDirectory() as folder:
        tiny = tiny_model_folder(Path(folder) / "model")
        found = {
            fault: doctor_run(
                *("--plant-fault", fault, *NEEDED_BY_FAULT.get(fault, ())),
                model=None if fault in LARGE_FAULTS else tiny,
                quick=fault not in LARGE_FAULTS,
            )
            for fault in FAULTS
        }
        clean = [doctor_run(model=tiny) for _ in range(NUM_CLEAN_RUNS - NUM_LARGE_CLEAN_RUNS)]
        quick = doctor_run(quick=True)
        whole = [doctor_run() for _ in range(NUM_LARGE_CLEAN_RUNS - 1)]
    missed = [fault for fault, run in found.items() if fault not in run.accused]
    others = {fault: run.accused - {fault} for fault, run in found.items() if run.accused - {fault}}
    false_alarms = [run.accused for run in (*clean, quick, *whole) if run.accused]
    return [
        Row(
            name="doctor, planted faults found and named",
            value=len(FAULTS) - len(missed),
            unit=f"of {len(FAULTS)}",
            bar=f"{len(FAULTS)}",
            holds=not missed,
            note=f"missed: {', '.join(missed)}" if missed else "",
        ),
        Row(
            name="doctor, planted faults named as something else too",
            value=len(others),
            unit=f"of {len(FAULTS)}",
            bar="0",
            holds=not others,
            note="; ".join(f"{fault}: {', '.join(sorted(names))}" for fault, names in others.items()),
        ),
        Row(
            name="doctor, clean runs with a finding",
            value=len(false_alarms),
            unit=f"of {NUM_CLEAN_RUNS}",
            bar="0",
            holds=not false_alarms,
            note="; ".join(", ".join(sorted(names)) for names in false_alarms)
            or f"{NUM_LARGE_CLEAN_RUNS} of the built-in model, the others of a tiny one",
        ),
        _seconds_row("quick", [quick]),
        _seconds_row("whole", whole),
    ]


def _seconds_row(kind: str, runs: Sequence[DoctorRun]) -> Row:
    seconds = [run.seconds for run in runs]
    return Row(
        name=f"doctor, a {kind} examination of the built-in model",
        value=statistics.median(seconds),
        unit="s",
        spread=f"{min(seconds):.0f} to {max(seconds):.0f}" if len(seconds) > 1 else None,
        note="with the start of its worker",
    )
