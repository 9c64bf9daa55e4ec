"""docs/metrics.md and the page, held together; and the page's names."""

from __future__ import annotations

import re
from pathlib import Path

from support.metrics_page import Family, busy_worker, families_of

DOCUMENT = Path(__file__).parents[4] / "docs/metrics.md"
UNITS = ("seconds", "tokens", "blocks", "rows", "ratio", "info")
THINGS = ("requests", "answers", "credentials", "preemptions", "steps", "sequences", "nodes")
ALIAS_LABELS = {"model_name", "engine"}


def documented() -> dict[str, Family]:
    """The rows of the document's tables."""
    rows = re.findall(r"^\| `([\w:]+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|", DOCUMENT.read_text(), re.MULTILINE)
    assert len(rows) == len({name for name, *_ in rows}), "a metric has two rows"
    return {
        name if name.startswith("vllm:") else f"prefixcache_{name}": Family(
            kind, tuple(sorted(re.findall(r"`(\w+)`", labels))), help_text
        )
        for name, kind, labels, help_text in rows
    }


async def test_every_metric_is_documented_as_it_is():
    async with busy_worker(metrics_aliases="vllm") as worker:
        families = await families_of(worker)
    found = {
        name: family._replace(labels=tuple(sorted({*family.labels} - ALIAS_LABELS)))
        if name.startswith("vllm:")
        else family
        for name, family in families.items()
    }
    assert found == documented()


async def test_every_metric_has_a_help_a_type_and_a_unit_in_its_name():
    async with busy_worker() as worker:
        page = await worker.worker.metrics.page()
        families = await families_of(worker)
    names = re.findall(r"^# TYPE (\S+)", page.body.decode(), re.MULTILINE)
    assert len(names) == len(set(names)) == len(families)
    for name, family in families.items():
        assert family.help.endswith("."), name
        assert family.type in ("counter", "gauge", "histogram"), name
        assert name.startswith("prefixcache_"), name
        assert any(word in name.split("_") for word in (*UNITS, *THINGS)), name


async def test_vllms_names_are_only_there_when_asked_for():
    async with busy_worker() as worker:
        assert not any(name.startswith("vllm:") for name in await families_of(worker))
