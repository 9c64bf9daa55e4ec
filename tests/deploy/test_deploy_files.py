"""What is in deploy/ does what it says, as far as tools tell without building an image."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from prefixcache_worker.config import WorkerConfig, load_config
from prefixcache_worker.server.tls import TlsFiles, TlsIdentity

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
BIN = Path(sys.executable).parent
YAML_RULES = "{extends: default, rules: {line-length: {max: 120}}}"


def output_of(*command: str | Path) -> str:
    """What a command prints; fails with it when the command fails."""
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    assert done.returncode == 0, done.stdout
    return done.stdout


def compose() -> dict:
    return yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())


def image_stages() -> dict[str, list[str]]:
    """The lines of each stage of the Dockerfile, those of the stage it begins with first."""
    stages: dict[str, list[str]] = {}
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line.startswith("FROM "):
            _, base, _, name = line.split()
            stages[name] = list(stages.get(base, ()))
        elif stages and line.strip() and not line.startswith("#"):
            stages[name].append(" ".join(line.split()))
    return stages


def test_linters_find_nothing():
    output_of(BIN / "hadolint", "--failure-threshold", "info", DEPLOY / "Dockerfile")
    output_of(BIN / "yamllint", "--strict", "-d", YAML_RULES, DEPLOY)
    output_of(BIN / "shellcheck", *sorted(DEPLOY.glob("*.sh")), REPOSITORY / ".ci/run")


@pytest.mark.parametrize("variant", ["cpu", "cuda"])
def test_the_image_serves_as_a_user_without_rights(variant: str):
    lines = image_stages()[variant]
    user = [line for line in lines if line.startswith("USER ")][-1]
    assert user == "USER 10001"
    assert 'ENTRYPOINT ["prefixcache", "serve"]' in lines
    assert any('prefixcache", "health' in line for line in lines if line.startswith("HEALTHCHECK"))
    assert not any("build-essential" in line or "pip install" in line for line in lines)


def test_the_image_takes_what_it_copies_from_the_repository():
    copies = [line.split()[1:-1] for line in image_stages()["build"] if line.startswith("COPY ")]
    missing = [name for names in copies for name in names if not (REPOSITORY / name).exists()]
    assert copies
    assert not missing


def test_settings_in_files_are_settings_of_the_worker():
    """`PREFIXCACHE_*` variables of the image, and the keys of worker.toml."""
    variables = {
        name: value
        for lines in image_stages().values()
        for line in lines
        if line.startswith("ENV ")
        for name, _, value in (word.partition("=") for word in line.split()[1:])
        if name.startswith("PREFIXCACHE_")
    }
    assert variables["PREFIXCACHE_DEVICE"] == "cuda"
    names = set(WorkerConfig.__dataclass_fields__)
    assert {name.removeprefix("PREFIXCACHE_").lower() for name in variables} <= names
    written = tomllib.loads((DEPLOY / "worker.toml").read_text())
    config = load_config(["--config", str(DEPLOY / "worker.toml")], variables)
    assert config.address == written["address"]
    assert config.drain_seconds == written["drain_seconds"]


def test_compose_mounts_and_publishes_what_the_worker_is_told():
    worker, settings = compose()["services"]["worker"], tomllib.loads((DEPLOY / "worker.toml").read_text())
    mounts = dict(volume.split(":")[:2][::-1] for volume in worker["volumes"])
    for key in ("keys", "tenants", "snapshot"):
        assert any(settings[key].startswith(target) for target in mounts), key
    for target, source in mounts.items():
        if source.startswith("../"):
            assert (DEPLOY / "compose" / source).exists(), target
    ports = {port.rsplit(":", 1)[1] for port in worker["ports"]}
    assert ports == {settings[key].rsplit(":", 1)[1] for key in ("address", "http_address")}
    assert all(port.startswith("127.0.0.1:") for port in worker["ports"])


def test_supervisors_wait_for_the_drain_and_the_last_snapshot():
    config = load_config(["--config", str(DEPLOY / "worker.toml")], {})
    needed = config.drain_seconds + config.snapshot_stop_seconds + 5
    unit = (DEPLOY / "systemd/prefixcache.service").read_text()
    (line,) = [line for line in unit.splitlines() if line.startswith("TimeoutStopSec=")]

    assert float(compose()["services"]["worker"]["stop_grace_period"].rstrip("s")) >= needed
    assert float(line.partition("=")[2]) >= needed


def test_prometheus_scrapes_the_workers_door_with_a_key():
    scrapes = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())["scrape_configs"]
    volumes = compose()["services"]["prometheus"]["volumes"]
    mounted = {volume.split(":")[1] for volume in volumes}
    # A relative path begins where the file is that has it.
    keys = {f"/etc/prometheus/{scrape['authorization']['credentials_file']}" for scrape in scrapes}
    assert keys | {"/etc/prometheus/prometheus.yml"} <= mounted
    http_address = tomllib.loads((DEPLOY / "worker.toml").read_text())["http_address"]
    targets = [
        target for scrape in scrapes for place in scrape["static_configs"] for target in place["targets"]
    ]
    assert targets == [f"worker:{http_address.rsplit(':', 1)[1]}"]


def test_certificates_are_made_and_renewed(tmp_path: Path):
    script = DEPLOY / "make_certificates.sh"
    output_of(script, tmp_path)
    authority = (tmp_path / "ca.pem").read_bytes()
    files = TlsFiles(
        certificate=tmp_path / "worker.pem", key=tmp_path / "worker.key", client_ca=tmp_path / "ca.pem"
    )
    TlsIdentity(files)
    first = files.certificate.read_bytes()
    output_of(script, tmp_path, "worker.example.com", "10.0.0.1")
    TlsIdentity(files)

    assert (tmp_path / "ca.pem").read_bytes() == authority
    assert files.certificate.read_bytes() != first
    for name in ("worker", "client"):
        output_of("openssl", "verify", "-CAfile", tmp_path / "ca.pem", tmp_path / f"{name}.pem")
        assert (tmp_path / f"{name}.key").stat().st_mode & 0o077 == 0
    text = output_of("openssl", "x509", "-in", files.certificate, "-noout", "-text")
    assert "DNS:worker.example.com, IP Address:10.0.0.1" in text
