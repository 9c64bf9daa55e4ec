"""`prefixcache serve`, `keys` and `plan`: the command becomes the worker's program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest

from prefixcache_client.command_line import main as command_line
from prefixcache_client.command_line import serve


class TestServe:
    def test_it_becomes_the_worker_with_every_argument(self, monkeypatch: pytest.MonkeyPatch) -> None:
        worker_arguments = ["--kv-blocks", "64", "--help", "--json"]
        executed: list[list[str]] = []
        monkeypatch.setattr(os, "execv", lambda path, argv: executed.append([path, *argv]) or sys.exit(0))

        with pytest.raises(SystemExit):
            command_line.main(["serve", *worker_arguments])

        assert executed == [[sys.executable, sys.executable, "-m", "prefixcache_worker", *worker_arguments]]

    def test_keys_becomes_the_worker_s_program_for_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        executed: list[list[str]] = []
        monkeypatch.setattr(os, "execv", lambda path, argv: executed.append([path, *argv]) or sys.exit(0))

        with pytest.raises(SystemExit):
            command_line.main(["keys", "add", "--tenant", "acme", "--help"])

        [command] = executed
        assert command[2:] == ["-m", "prefixcache_worker.keys_command", "add", "--tenant", "acme", "--help"]

    def test_plan_becomes_the_worker_s_program_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        executed: list[list[str]] = []
        monkeypatch.setattr(os, "execv", lambda path, argv: executed.append([path, *argv]) or sys.exit(0))

        with pytest.raises(SystemExit):
            command_line.main(["plan", "--memory", "24GiB", "--json", "-"])

        [command] = executed
        assert command[2:] == ["-m", "prefixcache_worker.plan_command", "--memory", "24GiB", "--json", "-"]

    def test_every_package_of_the_extra_is_looked_for(self) -> None:
        pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
        packages = {
            re.split("[^a-z0-9-]", requirement)[0]
            for requirement in pyproject["project"]["optional-dependencies"]["worker"]
            if ";" not in requirement  # not for every machine
        }
        modules = [module.split(".")[0] for module in serve._WORKER_MODULES]
        found = [package for module in modules for package in packages_distributions()[module]]
        assert packages <= {package.lower().replace("_", "-") for package in found}

    def test_a_missing_extra_is_one_sentence_with_the_command(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(serve, "_WORKER_MODULES", ("json", "no_such_module"))

        assert command_line.main(["serve"]) == 1

        assert capsys.readouterr().err == (
            "prefixcache: the worker needs no_such_module:"
            " install it with pip install 'prefixcache[worker]'\n"
        )


def test_the_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        command_line.main(["--version"])

    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"prefixcache {version('prefixcache')}\n"


def test_the_client_needs_neither_the_worker_nor_torch() -> None:
    script = (
        "import sys, prefixcache_client.command_line.main;"
        "sys.exit(' '.join({'torch', 'numpy', 'prefixcache_worker'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.stderr.strip() == ""
