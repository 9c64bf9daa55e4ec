"""Examinations by `prefixcache doctor`, each of a worker of its own, and noise beside them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from prefixcache_client.doctor.finding import Verdict
from prefixcache_client.doctor.report import load_report

EXIT_HEALTHY, EXIT_FINDINGS = 0, 3
TIMEOUT_SECONDS = 600
NEEDED_BY_FAULT = {"scales-left-behind": ("--kv-dtype", "int8")}
"""What a worker needs for a fault to be possible at all."""


class DoctorRun(NamedTuple):
    """What one examination came to."""

    accused: frozenset[str]
    """Pitfalls of what is wrong, or the check where it names none; nothing on a healthy worker."""
    text: str
    """As a terminal shows it."""
    seconds: float
    """With the start of the worker."""


def doctor_run(*worker_arguments: str, model: Path | None = None, quick: bool = False) -> DoctorRun:
    """Examine a worker with these arguments; without a model, one with the built-in one.

    Raises RuntimeError when it could not be examined.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [
            *(sys.executable, "-m", "prefixcache_client.command_line.main", "doctor", "--json", str(path)),
            *(("--quick",) if quick else ()),
            *(("--model", str(model)) if model is not None else ()),
            *(("--worker", *worker_arguments) if worker_arguments else ()),
        ]
        begun = time.perf_counter()
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
        seconds = time.perf_counter() - begun
        if ended.returncode not in (EXIT_HEALTHY, EXIT_FINDINGS):
            raise RuntimeError(f"the doctor failed on a worker with {worker_arguments}: {ended.stderr}")
        report = load_report(str(path))
    accused = frozenset(
        finding.pitfall or finding.name
        for finding in report.findings
        if finding.verdict in (Verdict.WARNING, Verdict.FAULT)
    )
    assert bool(accused) == (ended.returncode == EXIT_FINDINGS)
    return DoctorRun(accused, ended.stdout, seconds)


_BURNER = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(1_000_000))"
"""Ends when nobody is left who could end it."""


@contextmanager
def burners(count: int) -> Iterator[None]:
    """So many processes that compute for nothing meanwhile."""
    with ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", _BURNER]))
            stack.callback(process.kill)
        yield
