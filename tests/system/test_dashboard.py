"""Every query of the dashboard and of the alerts, asked of a real Prometheus that scrapes a real worker."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from support.process_worker import http_address, process_worker, tiny_model_folder

from prefixcache_client import Client

DEPLOY = Path(__file__).parents[2] / "deploy"
WAIT_SECONDS = 60


def maker() -> ModuleType:
    spec = spec_from_file_location("make_dashboard", DEPLOY / "grafana/make_dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["make_dashboard"] = module
    spec.loader.exec_module(module)
    return module


MAKER = maker()
QUERIES = [expr.replace("$instance", ".*").replace("$__rate_interval", "1m") for expr in MAKER.queries()]
ALERTS = [
    (rule["alert"], rule["expr"])
    for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]


class Prometheus:
    """A running one."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, expr: str) -> list[dict[str, Any]]:
        """The samples of an expression now. Raises HTTPError when it is none."""
        query = urllib.parse.urlencode({"query": expr})
        with urllib.request.urlopen(f"http://{self._address}/api/v1/query?{query}", timeout=10) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return result

    def wait_for(self, expr: str, count: float) -> None:
        """Until an expression has reached a value."""
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until:
            try:
                if any(float(sample["value"][1]) >= count for sample in self.ask(expr)):
                    return
            except OSError:  # it is not there yet
                pass
            time.sleep(0.2)
        raise AssertionError(f"{expr} did not reach {count} within {WAIT_SECONDS} seconds")


@contextmanager
def prometheus(target: str, folder: Path) -> Iterator[Prometheus]:
    """Scrapes the target ten times a second."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = {
        "global": {"scrape_interval": "100ms"},
        "scrape_configs": [{"job_name": "prefixcache", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.json").write_text(json.dumps(config))  # which is YAML too
    command = ["prometheus", f"--config.file={folder}/prometheus.json", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address={address}"], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        try:
            yield Prometheus(address)
        finally:
            process.terminate()
            process.wait(30)


def be_busy(client: Client, number: int) -> None:
    """Hits, misses, copies, evictions and what comes back from the tier, from a pool of 40 blocks."""
    shared = [7 + number % 2] * 70
    for tail in range(4):
        client.generate([*shared, 10 + tail, number % 200 + 20], max_tokens=4, ignore_eos=True)
    client.generate([(number * 31 + i) % 250 + 5 for i in range(120)], max_tokens=2, n=2, ignore_eos=True)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("watched")
    arguments = ("--http-address", "127.0.0.1:0", "--kv-blocks", "40", "--kv-headroom", "0")
    model = tiny_model_folder(folder / "model")
    with process_worker(model, *arguments, "--tier-memory", "4MiB") as worker:
        address = worker.wait_ready(timeout_seconds=120)
        with prometheus(http_address(worker), folder) as watching, Client(address) as client:
            watching.wait_for('up{job="prefixcache"}', 1)
            for number in range(12):
                be_busy(client, number)
            num_steps = client.stats().requests.steps
            watching.wait_for("prefixcache_steps_total", num_steps)
            be_busy(client, 13)  # so that every rate has two samples that differ
            watching.wait_for("prefixcache_steps_total", num_steps + 1)
            yield watching


@pytest.mark.parametrize("expr", QUERIES)
def test_a_query_of_the_dashboard_has_samples(watched: Prometheus, expr: str) -> None:
    assert watched.ask(expr)


@pytest.mark.parametrize(("name", "expr"), ALERTS, ids=[name for name, _ in ALERTS])
def test_an_alert_asks_for_what_is_there(watched: Prometheus, name: str, expr: str) -> None:
    watched.ask(expr)
    for metric in set(re.findall(r"prefixcache_\w+", expr)):
        assert watched.ask(f"count({metric})"), metric


def test_a_busy_worker_s_figures_are_right(watched: Prometheus) -> None:
    [[_, hit], [_, queried]] = (
        watched.ask(f"prefixcache_cache_{what}_tokens_total")[0]["value"] for what in ("hit", "queried")
    )
    assert 0 < float(hit) < float(queried)


def test_the_dashboard_is_what_its_maker_makes() -> None:
    made = json.loads((DEPLOY / "grafana/prefixcache.json").read_text())
    assert made == json.loads(json.dumps(MAKER.dashboard()))
    ids = [panel["id"] for panel in made["panels"]]
    assert len(set(ids)) == len(ids)
