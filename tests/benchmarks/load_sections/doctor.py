"""The doctor on the default model: every planted fault is found and named, healthy workers are left alone."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import Row

from prefixcache_worker.faults.planting import FAULTS

NUM_CLEAN_RUNS = 20
EXIT_HEALTHY, EXIT_FINDINGS = 0, 3
WORKER_ARGUMENTS = {"scales-left-behind": ("--kv-dtype", "int8")}
"""What a worker needs for a fault to be possible at all."""


def doctor_rows(num_clean_runs: int = NUM_CLEAN_RUNS) -> list[Row]:
    """One quick examination for each planted fault, then clean ones. Some minutes."""
    found = {fault: accusations(fault) for fault in FAULTS}
    missed = sorted(fault for fault, pitfalls in found.items() if fault not in pitfalls)
    others = {fault: sorted(pitfalls - {fault}) for fault, pitfalls in found.items() if pitfalls - {fault}}
    began = time.perf_counter()
    false_alarms = [pitfalls for _ in range(num_clean_runs) if (pitfalls := accusations(None))]
    return [
        Row(
            name="doctor, planted faults found and named",
            value=len(FAULTS) - len(missed),
            unit=f"of {len(FAULTS)}",
            bar="all",
            holds=not missed,
            note=f"missed: {', '.join(missed)}" if missed else "",
        ),
        Row(
            name="doctor, planted faults named as something else too",
            value=len(others),
            unit=f"of {len(FAULTS)}",
            note="; ".join(f"{fault}: {', '.join(names)}" for fault, names in others.items()),
        ),
        Row(
            name="doctor, clean runs with a finding",
            value=len(false_alarms),
            unit=f"of {num_clean_runs}",
            bar="none",
            holds=not false_alarms,
            note="; ".join(", ".join(sorted(pitfalls)) for pitfalls in false_alarms),
        ),
        Row(
            name="doctor, one quick examination with the start of its worker",
            value=(time.perf_counter() - began) / max(1, num_clean_runs),
            unit="s",
        ),
    ]


def accusations(fault: str | None) -> set[str]:
    """What the doctor calls wrong with a worker of its own: pitfalls, or the check where there is none."""
    planted = () if fault is None else ("--plant-fault", fault, *WORKER_ARGUMENTS.get(fault, ()))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [
            *(sys.executable, "-m", "prefixcache_client.command_line.main", "doctor", "--quick"),
            *("--json", str(path)),
            *(("--worker", *planted) if planted else ()),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode not in (EXIT_HEALTHY, EXIT_FINDINGS):
            raise RuntimeError(f"the doctor failed on {fault}: {ended.stderr}")
        findings: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["findings"]
    accused = {
        finding["pitfall"] or finding["name"]
        for finding in findings
        if finding["verdict"] in ("warning", "fault")
    }
    assert bool(accused) == (ended.returncode == EXIT_FINDINGS)
    return accused
