"""What is built for installation has no faults, and says so when it is asked for one."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.process_worker import tiny_model_folder

ROOT = Path(__file__).parents[3]
PARTS = ("worker", "client")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return folder


def test_neither_wheel_nor_source_distribution_has_faults(built: Path):
    [wheel], [sdist] = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as wheel_file, tarfile.open(sdist) as sdist_file:
        names_of_both = wheel_file.namelist(), sdist_file.getnames()
    for names in names_of_both:
        assert any(name.endswith("prefixcache_worker/server/build.py") for name in names)
        assert not [name for name in names if "/faults" in name]


def test_the_wheel_has_what_is_read_at_run_time_and_no_tests(built: Path):
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as wheel_file:
        names = set(wheel_file.namelist())
    expected = {
        path.relative_to(folder).as_posix()
        for folder, package in (
            (ROOT, "prefixcache"),
            *((ROOT / part, f"prefixcache_{part}") for part in PARTS),
        )
        for path in (folder / package).rglob("*")
        if path.is_file() and not {"__pycache__", "faults"} & set(path.parts)
    }
    assert {"prefixcache_worker/server/http/ui/static/page.js", "prefixcache_client/py.typed"} <= expected
    assert {name for name in names if ".dist-info/" not in name} == expected


def test_an_installed_worker_refuses_to_plant_one(built: Path, tmp_path: Path):
    [wheel], model = built.glob("*.whl"), tiny_model_folder(tmp_path / "model")
    with zipfile.ZipFile(wheel) as wheel_file:
        wheel_file.extractall(tmp_path / "installed")
    worker = subprocess.run(
        [sys.executable, "-m", "prefixcache_worker", "--model", str(model), "--address", "127.0.0.1:0",
         "--plant-fault", "extra-row"],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed"), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (worker.returncode, worker.stdout) == (1, "")
    assert worker.stderr.splitlines()[-1] == (
        "prefixcache serve: --plant-fault: this build has no faults to plant; drop it, or run from a "
        "checkout of the source"
    )
