"""`prefixcache doctor` with real workers on a tiny model: a clean one is left alone, a broken one named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support.process_worker import READY_SECONDS, process_worker, tiny_model_folder

from prefixcache_client import Client
from prefixcache_client.command_line import main as command_line
from prefixcache_client.doctor.report import load_report


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("doctor") / "model")


def findings(path: Path) -> dict[str, dict[str, Any]]:
    """By the check's name."""
    return {finding["name"]: finding for finding in json.loads(path.read_text())["findings"]}


def test_a_clean_worker_is_left_alone(model: Path, tmp_path: Path) -> None:
    """Of a running worker: nothing is found, nothing is held afterwards, and the figures are right."""
    report, trace = tmp_path / "report.json", tmp_path / "trace.json.gz"
    with process_worker(model) as worker:
        address = worker.wait_ready(timeout_seconds=READY_SECONDS)
        with Client(address) as client:
            prompt = list(range(100, 140))
            client.generate(prompt, max_tokens=1)
            status = command_line.main(
                ["doctor", "--target", address, "--quick", "--json", str(report), "--trace", str(trace)]
            )
            blocks = client.stats().blocks
            again = client.generate(prompt, max_tokens=1)
        log = worker.log()

    assert status == 0, [each for each in findings(report).values() if each["pitfall"]]
    checks = findings(report)
    assert {check["step"] for check in checks.values()} == {1, 2, 3, 4, 5, 6}
    decided = ("layout map", "rows", "shared reads", "hits", "release", "gauges", "answers", "indexes")
    assert {name: checks[name]["verdict"] for name in decided} == dict.fromkeys(decided, "healthy")
    settings = ("fills", "block size", "headroom", "pool size", "preemptions")
    assert {name: checks[name]["verdict"] for name in settings} == dict.fromkeys(settings, "healthy")
    assert checks["layout map"]["evidence"]["token_bytes"] == 2 * 2 * 2 * 8 * 4
    assert checks["answers"]["evidence"]["largest_logprob_difference"] < 1e-4
    assert checks["rows"]["evidence"]["num_steps"] > 100
    assert blocks.live == 0
    assert again.usage.cached_tokens == len(prompt) - 1, "what others had cached is still there"
    with gzip.open(trace) as file:
        assert json.load(file)["traceEvents"]
    assert "profiler" not in log, "torch tells of each recording unless it is told not to"


def test_a_worker_that_runs_one_sequence_at_a_time_is_left_alone(model: Path) -> None:
    """It has no room for several answers to one prompt."""
    worker = ["--num-threads", "1", "--attention", "torch", "--max-running", "1"]
    assert command_line.main(["doctor", "--only", "audit", "--model", str(model), "--worker", *worker]) == 0


@pytest.mark.parametrize(
    ("fault", "steps", "checks"),
    [("leaked-reference", ["3"], {"release", "indexes"}), ("tiny-blocks", ["5"], {"block size"})],
)
def test_a_broken_worker_is_named(
    model: Path, tmp_path: Path, fault: str, steps: list[str], checks: set[str]
) -> None:
    report = tmp_path / "report.json"
    status = command_line.main(
        [
            *("doctor", "--model", str(model), "--quick", "--only", *steps, "--json", str(report)),
            *("--worker", "--num-threads", "1", "--plant-fault", fault),
        ]
    )

    assert status == 3
    assert load_report(str(report)).pitfalls == [fault]
    assert {name for name, check in findings(report).items() if check["pitfall"] == fault} >= checks
