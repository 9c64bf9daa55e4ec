"""The GPU benchmark runs from the source tree, and without what a GPU machine may lack."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SECTIONS = ("machine", "correctness", "decode", "engine", "tiles")
MISSING = ("grpc", "google", "gguf", "tokenizers", "safetensors", "jinja2", "rich", "transformers", "pytest")


def test_a_dry_run_in_the_interpreter(tmp_path):
    """Sections in processes of their own, their rows as JSON."""
    command = [sys.executable, BENCHMARKS / "gpu_decode.py", "--dry-run", "--only", "correctness", "ratios"]
    result = subprocess.run(
        [*command, "--json", tmp_path / "rows.json"], env=environment(), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["holds"] for row in rows] == [True] * 8 + [None] * 3


@pytest.mark.parametrize("arguments", [["--only", "nothing"], ["--quick", "--dry-run"]])
def test_wrong_arguments_are_refused(arguments):
    command = [sys.executable, BENCHMARKS / "gpu_decode.py", *arguments]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert result.returncode == 2
    assert "error: argument" in result.stderr


def test_its_sections_import_little():
    """torch, triton, numpy, xxhash and sortedcontainers are enough."""
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({MISSING!r}))\n"
        f"for name in {SECTIONS!r}: __import__('gpu_sections.' + name)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment(BENCHMARKS), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_the_worker_imports_without_triton():
    """There is none for macOS, nor for every Linux."""
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "import prefixcache_worker.__main__, prefixcache_worker.server.build"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def environment(*paths: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, paths), *filter(None, sys.path)])}
