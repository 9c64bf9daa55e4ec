"""A real worker that is started with keys and limits, as an operator runs it day by day."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from prefixcache_client import Client, PermissionDeniedError, ResourceExhaustedError, UnauthenticatedError
from prefixcache_client.worker_process import WorkerProcess

DEADLINE_SECONDS = 120.0


def keys(*arguments: str, program: tuple[str, ...] = ("prefixcache_worker.keys_command",)) -> str:
    """What the program that `prefixcache keys` becomes prints."""
    command = [sys.executable, "-m", *program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def answer(address: str, key: str) -> str:
    with Client(address, api_key=key, deadline=DEADLINE_SECONDS) as client:
        return client.generate("The capital of France is", max_tokens=2, temperature=0).text


def refused_until_taken(address: str, key: str) -> str:
    """Call until the worker has looked at its file again."""
    while True:
        try:
            return answer(address, key)
        except UnauthenticatedError:
            pass


def taken_until_refused(address: str, key: str) -> UnauthenticatedError:
    """The other way around; each call takes a step of the model, so they are few."""
    while True:
        try:
            answer(address, key)
        except UnauthenticatedError as error:
            return error


def test_keys_come_and_go_while_the_worker_runs(tmp_path: Path):
    path, limits = tmp_path / "keys.json", tmp_path / "tenants.toml"
    limits.write_text("[tenants.kiosk]\nrequests_per_minute = 1\n")
    prefixcache = ("prefixcache_client.command_line.main", "keys")
    admin = keys("add", "--tenant", "house", "--role", "admin", "--file", str(path), program=prefixcache)
    shop = keys("add", "--tenant", "shop", "--label", "till 3", "--file", str(path))
    arguments = ("--keys", str(path), "--tenants", str(limits), "--kv-blocks", "64", "--log-level", "debug")
    with WorkerProcess(*arguments) as worker:
        address = worker.wait_ready(timeout_seconds=DEADLINE_SECONDS)
        assert answer(address, shop) == answer(address, admin)
        with Client(address, api_key=shop, deadline=DEADLINE_SECONDS) as client:
            with pytest.raises(PermissionDeniedError, match="GetStats needs the role admin"):
                client.stats()
            assert client.health()
        with Client(address, deadline=DEADLINE_SECONDS) as client:
            with pytest.raises(UnauthenticatedError, match="needs an API key"):
                client.model_info()
            assert client.health()

        kiosk = keys("add", "--tenant", "kiosk", "--file", str(path))
        assert refused_until_taken(address, kiosk)
        with pytest.raises(ResourceExhaustedError, match="1 requests a minute") as caught:
            answer(address, kiosk)
        assert 0 < (caught.value.retry_after_seconds or 0) <= 60

        listed = keys("list", "--file", str(path))
        [shop_id] = [line.split()[0] for line in listed.splitlines() if "till 3" in line]
        keys("revoke", shop_id, "--file", str(path))
        assert "may have been revoked" in str(taken_until_refused(address, shop))

        path.write_text("{ half a file")
        assert answer(address, admin), "a broken file changes nothing"
        worker.stop()
        log = worker.log()
        output = "\n".join(worker.output_lines)
    assert "tenant='shop'" in log
    assert f"{path} has been read again" in log
    for key in (admin, shop, kiosk):
        secret = key.rpartition("_")[2]
        assert secret not in log + output + listed
        assert secret not in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--keys", "/no/keys.json"),
            "--keys: there is no /no/keys.json; make it with `prefixcache keys add",
        ),
        (("--address", "0.0.0.0:0"), "--address: 0.0.0.0:0 can be reached from other machines"),
    ],
)
def test_a_worker_that_would_be_open_by_mistake_does_not_start(arguments: tuple[str, ...], sentence: str):
    done = subprocess.run(
        [sys.executable, "-m", "prefixcache_worker", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"prefixcache serve: {sentence}")
