"""The alert rules: in each of some worlds exactly those fire that should, by Prometheus' own test tool."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

RULES = Path(__file__).parents[2] / "deploy/prometheus/alerts.yml"
MINUTES = 120

# Two hours of a busy worker that is well, a value a minute: "0+600" grows by 600 with each.
BUSY = {
    'up{job="prefixcache"}': "1x",
    "prefixcache_steps_total": "0+3000x",
    "prefixcache_requests_running": "32x",
    "prefixcache_requests_waiting": "0x",
    'prefixcache_requests_total{outcome="finished"}': "0+600x",
    'prefixcache_requests_total{outcome="failed"}': "0+3x",
    'prefixcache_answers_total{code="OK"}': "0+600x",
    'prefixcache_answers_total{code="RESOURCE_EXHAUSTED"}': "0+20x",
    "prefixcache_kv_cache_usage_ratio": "0.8x",
    "prefixcache_kv_waste_ratio": "0.3x",
    "prefixcache_preemptions_total": "0+3x",
    'prefixcache_time_to_first_token_seconds_bucket{le="10"}': "0+600x",
    'prefixcache_time_to_first_token_seconds_bucket{le="20"}': "0+600x",
    'prefixcache_time_to_first_token_seconds_bucket{le="+Inf"}': "0+600x",
    'prefixcache_block_idle_seconds_bucket{le="60"}': "0+0x",
    'prefixcache_block_idle_seconds_bucket{le="600"}': "0+100x",
    'prefixcache_block_idle_seconds_bucket{le="+Inf"}': "0+100x",
    'prefixcache_block_reuse_gap_seconds_bucket{le="60"}': "0+100x",
    'prefixcache_block_reuse_gap_seconds_bucket{le="+Inf"}': "0+100x",
    "prefixcache_refused_credentials_total": "0+6x",
}
SOON_EVICTED = {
    'prefixcache_block_idle_seconds_bucket{le="60"}': "0+100x",
    'prefixcache_block_reuse_gap_seconds_bucket{le="60"}': "0+0x",
    'prefixcache_block_reuse_gap_seconds_bucket{le="600"}': "0+100x",
}
WORLDS: dict[str, tuple[dict[str, str], set[str]]] = {
    "busy and well": ({}, set()),
    "idle": ({name: "1x" if name.startswith("up") else "0x" for name in BUSY}, set()),
    "gone": ({'up{job="prefixcache"}': "0x"}, {"Down"}),
    "running requests and no step": ({"prefixcache_steps_total": "9000x"}, {"EngineStuck"}),
    "no step and nothing to do": (
        {"prefixcache_steps_total": "9000x", "prefixcache_requests_running": "0x"},
        set(),
    ),
    "1 in 50 fails": ({'prefixcache_requests_total{outcome="failed"}': "0+12x"}, {"RequestsFail"}),
    "1 in 10 is refused": (
        {'prefixcache_answers_total{code="RESOURCE_EXHAUSTED"}': "0+66x"},
        {"RequestsRefused"},
    ),
    "a queue that never empties": ({"prefixcache_requests_waiting": "1x"}, {"QueueGrows"}),
    "2 in 100 first tokens take more than 10 seconds": (
        {'prefixcache_time_to_first_token_seconds_bucket{le="10"}': "0+588x"},
        {"FirstTokenSlow"},
    ),
    "nearly full": ({"prefixcache_kv_cache_usage_ratio": "0.9x"}, {"PoolNearlyFull"}),
    "full": ({"prefixcache_kv_cache_usage_ratio": "0.99x"}, {"PoolNearlyFull", "PoolFull"}),
    "a preemption every five seconds": ({"prefixcache_preemptions_total": "0+12x"}, {"Preempts"}),
    "more than half is wasted": ({"prefixcache_kv_waste_ratio": "0.6x"}, {"BlocksWasted"}),
    "one small request wastes its block": (
        {"prefixcache_kv_waste_ratio": "0.6x", "prefixcache_kv_cache_usage_ratio": "0.01x"},
        set(),
    ),
    "evicted after a minute, used again after ten": (SOON_EVICTED, {"EvictsWhatIsUsed"}),
    "two calls a second without a key": (
        {"prefixcache_refused_credentials_total": "0+120x"},
        {"CredentialsRefused"},
    ),
}
DAY = 1440
HALF_THE_HITS = {
    "prefixcache_cache_queried_tokens_total": "0+200x1800",
    "prefixcache_cache_hit_tokens_total": f"0+160x{DAY} {160 * DAY}+60x360",
}


def fire(series: dict[str, str], minute: int, alerts: set[str], folder: Path) -> None:
    """Fails, with what promtool says, unless these alerts and no others fire in that minute."""
    firing = {"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": f"{minute}m"}
    firing["exp_samples"] = [  # type: ignore[assignment]
        {"labels": f'{{alertname="Prefixcache{name}"}}', "value": 1} for name in sorted(alerts)
    ]
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": [firing]}
    path = folder / "test.json"  # which is YAML too
    path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", path], text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("world", WORLDS)
def test_a_world_fires_what_it_should(world: str, tmp_path: Path) -> None:
    changes, alerts = WORLDS[world]
    series = {name: f"{values}{MINUTES}" for name, values in {**BUSY, **changes}.items()}
    fire(series, 100, alerts, tmp_path)


def test_half_the_hits_of_a_day_ago(tmp_path: Path) -> None:
    fire(HALF_THE_HITS, DAY - 20, set(), tmp_path)
    fire(HALF_THE_HITS, DAY + 120, {"HitsFall"}, tmp_path)


def test_every_alert_has_a_world() -> None:
    named = {
        line.split("alert: Prefixcache")[1].strip()
        for line in RULES.read_text().splitlines()
        if "alert: " in line
    }
    shown = set().union(*(alerts for _, alerts in WORLDS.values()), {"HitsFall"})
    assert named == shown
