"""deploy/ as the tools see it that will read it: Debian packages, which `make test-system` gets."""

from __future__ import annotations

import subprocess
from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy"


def output_of(*command: str | Path) -> str:
    """What a command prints on both outputs; fails with it when the command fails."""
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_compose_understands_the_file():
    services = output_of("docker-compose", "-f", DEPLOY / "compose/compose.yaml", "config", "--services")
    assert set(services.split()) == {"worker", "prometheus", "grafana"}


def test_prometheus_understands_its_file(tmp_path: Path):
    """It wants to find the key, so a copy of the file has one beside it."""
    copy = tmp_path / "prometheus.yml"
    copy.write_text((DEPLOY / "compose/prometheus.yml").read_text())
    (tmp_path / "prometheus.key").write_text("a key")
    (tmp_path / "alerts.yml").write_text((DEPLOY / "prometheus/alerts.yml").read_text())

    assert "is valid" in output_of("promtool", "check", "config", copy)


def test_systemd_understands_the_unit_and_finds_it_confined(tmp_path: Path):
    """`verify` wants to find the program, so a copy of the unit runs one that is there."""
    text = (DEPLOY / "systemd/prefixcache.service").read_text()
    unit = tmp_path / "prefixcache.service"
    unit.write_text(text.replace("/opt/prefixcache/bin/prefixcache", "/bin/true"))

    assert output_of("systemd-analyze", "verify", "--man=no", unit) == ""
    # 0 is a program that can do nothing, 10 one that is not confined at all.
    output_of("systemd-analyze", "security", "--offline=yes", "--threshold=50", unit)
