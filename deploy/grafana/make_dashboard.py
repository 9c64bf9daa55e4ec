"""Writes prefixcache.json, the dashboard that Grafana reads: `python deploy/grafana/make_dashboard.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

DASHBOARD = Path(__file__).with_name("prefixcache.json")
GRID_WIDTH = 24
HERE = 'instance=~"$instance"'
RATE = "$__rate_interval"


class Query(NamedTuple):
    """One line of a panel, or several that `legend` tells apart."""

    expr: str
    legend: str = ""


class Panel(NamedTuple):
    """One panel."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    about: str = ""
    is_stacked: bool = False
    is_share: bool = False
    """Of values from 0 to 1."""


class Row(NamedTuple):
    """Panels beside each other, in lines of so many."""

    title: str
    panels: tuple[Panel, ...]
    num_in_line: int = 3
    height: int = 8


def rate(name: str, *by: str, **labels: str) -> str:
    """The rate of a counter, summed over the workers."""
    chosen = ", ".join([HERE, *(f'{label}="{value}"' for label, value in labels.items())])
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"sum{grouped} (rate(prefixcache_{name}{{{chosen}}}[{RATE}]))"


def quantile(share: float, name: str) -> str:
    """A quantile of a histogram of all workers."""
    return f"histogram_quantile({share}, {rate(f'{name}_bucket', 'le')})"


def gauge(name: str, *by: str, how: str = "sum", **labels: str) -> str:
    """A gauge of all workers."""
    chosen = ", ".join([HERE, *(f'{label}="{value}"' for label, value in labels.items())])
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"{how}{grouped} (prefixcache_{name}{{{chosen}}})"


def quantiles(title: str, name: str, about: str = "", unit: str = "s") -> Panel:
    """A histogram as three lines."""
    shares = ((0.5, "half"), (0.9, "9 of 10"), (0.99, "99 of 100"))
    queries = tuple(Query(quantile(share, name), legend) for share, legend in shares)
    return Panel(title, queries, unit=unit, about=about)


HIT_RATIO = f"{rate('cache_hit_tokens_total')} / {rate('cache_queried_tokens_total')}"
SAVED_ROWS = f"1 - {rate('kv_rows_read_total')} / {rate('kv_rows_unshared_total')}"

ROWS = (
    Row(
        "At a glance",
        (
            Panel("Running", (Query(gauge("requests_running")),), kind="stat"),
            Panel("Waiting", (Query(gauge("requests_waiting")),), kind="stat"),
            Panel("Output tokens/s", (Query(rate("generated_tokens_total")),), kind="stat"),
            Panel("Prompt tokens found in the cache", (Query(HIT_RATIO),), "percentunit", "stat"),
            Panel("Pool in use", (Query(gauge("kv_cache_usage_ratio", how="avg")),), "percentunit", "stat"),
            Panel(
                "First token, 99 of 100",
                (Query(quantile(0.99, "time_to_first_token_seconds")),),
                "s",
                "stat",
            ),
        ),
        num_in_line=6,
        height=4,
    ),
    Row(
        "How long things take",
        (
            quantiles("First token", "time_to_first_token_seconds", "From arrival, the queue included."),
            quantiles("From one token to the next", "inter_token_seconds"),
            quantiles("In the queue", "queue_seconds", "The first to rise when there is too much traffic."),
            quantiles("Prefill", "prefill_seconds", "Long: prompts miss the cache."),
            quantiles("Whole request", "request_seconds"),
            Panel(
                "Waiting and running",
                (
                    Query(gauge("requests_running"), "running"),
                    Query(gauge("requests_waiting_by_priority", "priority"), "waiting, {{priority}}"),
                ),
                is_stacked=True,
            ),
        ),
    ),
    Row(
        "What prompts find",
        (
            Panel(
                "Prompt tokens found in the cache",
                (
                    Query(HIT_RATIO, "found"),
                    Query(
                        gauge("estimated_hit_ratio", "pool_size", how="avg"),
                        "estimated, pool x {{pool_size}}",
                    ),
                ),
                "percentunit",
                about="The estimates say what a pool of another size would hit.",
                is_share=True,
            ),
            Panel(
                "Prompt tokens by source",
                (Query(rate("prompt_tokens_total", "source"), "{{source}}"),),
                "short",
                is_stacked=True,
            ),
            Panel(
                "KV rows that sharing saves",
                (Query(SAVED_ROWS, "saved"),),
                "percentunit",
                about="Of the rows that attention would read if every sequence read its own.",
                is_share=True,
            ),
        ),
    ),
    Row(
        "The pool",
        (
            Panel(
                "Blocks",
                (Query(gauge("blocks", "state"), "{{state}}"),),
                about="Idle blocks are cached and held by no request: they can go.",
                is_stacked=True,
            ),
            Panel(
                "Use and waste",
                (
                    Query(gauge("kv_cache_usage_ratio", how="avg"), "in use"),
                    Query(gauge("kv_waste_ratio", how="avg"), "of that without a token"),
                ),
                "percentunit",
                about="Under load 70 to 85 % in use is healthy, and waste below 50 %.",
                is_share=True,
            ),
            Panel(
                "Blocks saved by sharing now",
                (Query(f"{gauge('unshared_blocks')} - {gauge('blocks', state='live')}", "saved"),),
            ),
            Panel(
                "Evicted",
                (Query(rate("blocks_evicted_total", "cause"), "{{cause}}"),),
                about="Blocks a second, by cause.",
                is_stacked=True,
            ),
            Panel(
                "How long blocks stay, and when they are used again",
                (
                    Query(quantile(0.5, "block_residency_seconds"), "from stored to evicted"),
                    Query(quantile(0.5, "block_idle_seconds"), "from last used to evicted"),
                    Query(quantile(0.9, "block_reuse_gap_seconds"), "until used again, 9 of 10"),
                ),
                "s",
                about="Gaps longer than the idle time before eviction: the pool is too small for hits.",
            ),
            Panel(
                "Copied, pinned, given way",
                (
                    Query(rate("blocks_copied_total"), "blocks copied on write a second"),
                    Query(gauge("pinned_blocks"), "blocks pinned"),
                    Query(rate("preemptions_total"), "preemptions a second"),
                ),
            ),
        ),
    ),
    Row(
        "Steps",
        (
            quantiles("A step", "step_seconds"),
            Panel(
                "Where a step's time goes",
                (
                    Query(f"{rate('model_seconds_sum')} / {rate('step_seconds_sum')}", "the model"),
                    Query(f"{rate('plan_seconds_sum')} / {rate('step_seconds_sum')}", "choosing, planning"),
                ),
                "percentunit",
                is_share=True,
            ),
            Panel(
                "In a step, on average",
                (
                    Query(f"{rate('step_tokens_sum')} / {rate('step_tokens_count')}", "tokens"),
                    Query(f"{rate('step_sequences_sum')} / {rate('step_sequences_count')}", "sequences"),
                ),
            ),
        ),
    ),
    Row(
        "How requests end",
        (
            Panel(
                "Outcomes",
                (Query(rate("requests_total", "outcome"), "{{outcome}}"),),
                "reqps",
                is_stacked=True,
            ),
            Panel("Codes", (Query(rate("answers_total", "code"), "{{code}}"),), "reqps", is_stacked=True),
            Panel("Calls without a key", (Query(rate("refused_credentials_total"), "refused"),), "reqps"),
        ),
    ),
    Row(
        "Tenants",
        (
            Panel(
                "Prompt tokens",
                (Query(rate("tenant_prompt_tokens_total", "tenant"), "{{tenant}}"),),
                is_stacked=True,
            ),
            Panel(
                "Found in the cache",
                (
                    Query(
                        f"{rate('tenant_prompt_tokens_total', 'tenant', source='cached')}"
                        f" / {rate('tenant_prompt_tokens_total', 'tenant')}",
                        "{{tenant}}",
                    ),
                ),
                "percentunit",
                is_share=True,
            ),
            Panel(
                "Blocks of their own",
                (Query(gauge("tenant_blocks", "tenant"), "{{tenant}}"),),
                is_stacked=True,
            ),
        ),
    ),
    Row(
        "Tiers",
        (
            Panel(
                "Places",
                (Query(gauge("tier_blocks", "tier", "state"), "{{tier}}, {{state}}"),),
                is_stacked=True,
            ),
            Panel(
                "Blocks moved", (Query(rate("tier_blocks_moved_total", "tier", "way"), "{{tier}}, {{way}}"),)
            ),
            Panel("Prompt tokens brought back", (Query(rate("restored_tokens_total"), "restored"),)),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The whole dashboard, as Grafana's schema 39 has it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in ROWS:
        place = {"x": 0, "y": top, "w": GRID_WIDTH, "h": 1}
        panels.append({"type": "row", "title": row.title, "gridPos": place, "collapsed": False, "panels": []})
        top += 1
        width = GRID_WIDTH // row.num_in_line
        for number, panel in enumerate(row.panels):
            line, column = divmod(number, row.num_in_line)
            place = {"x": column * width, "y": top + line * row.height, "w": width, "h": row.height}
            panels.append(_panel(panel, place))
        top += -(-len(row.panels) // row.num_in_line) * row.height
    for number, entry in enumerate(panels, 1):
        entry["id"] = number
    return {
        "uid": "prefixcache",
        "title": "prefixcache",
        "tags": ["prefixcache"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _instances()]},
        "panels": panels,
    }


def queries() -> list[str]:
    """Every query of the dashboard."""
    return [query.expr for row in ROWS for panel in row.panels for query in panel.queries]


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.is_share:
        defaults["max"] = 1
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 25 if panel.is_stacked else 5,
            "stacking": {"mode": "normal" if panel.is_stacked else "none"},
            "showPoints": "never",
        }
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query.expr, "legendFormat": query.legend or "__auto"}
            for number, query in enumerate(panel.queries)
        ],
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _instances() -> dict[str, Any]:
    return {
        "name": "instance",
        "label": "Worker",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": "label_values(prefixcache_build_info, instance)",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


if __name__ == "__main__":
    DASHBOARD.write_text(json.dumps(dashboard(), indent=1) + "\n")
