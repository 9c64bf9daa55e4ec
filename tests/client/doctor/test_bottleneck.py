"""Step 6: every way down the tree, with the figure of each branch."""

from __future__ import annotations

from typing import Any

import pytest
from support.doctor_figures import profile, stats

from prefixcache_client.doctor.bottleneck import BottleneckFigures, find_bottleneck
from prefixcache_client.doctor.finding import Finding, Verdict
from prefixcache_client.doctor.fixed_answers import FixedAnswers

ANSWERS = FixedAnswers(texts={}, first_token_seconds=[0.1, 0.2, 0.3], token_seconds=[0.02, 0.025, 0.05])


def found(*, layout: float | None = 1.0, now: dict[str, Any] | None = None, **fields: Any) -> Finding:
    return find_bottleneck(
        BottleneckFigures(
            answers=ANSWERS,
            profile=profile(**fields),
            read_bytes_per_second=1e9,
            stats=stats(**(now or {})),
            layout_times_other=layout,
        )
    )


def test_overall_comes_first() -> None:
    finding = found()

    assert finding.verdict is Verdict.HEALTHY
    assert next(iter(finding.evidence.items())) == (
        "overall",
        "40.0 tokens/s, first token after 200 ms, alone",
    )


@pytest.mark.parametrize(
    ("fields", "largest"),
    [
        ({}, "products with the weights: 50%"),
        ({"attention_seconds": 0.12}, "attention: 60%"),
        ({"copy_seconds": 0.15, "product_seconds": 0.0, "attention_seconds": 0.0}, "copies: 75%"),
        ({"product_seconds": 0.01, "attention_seconds": 0.02}, "everything else: 80%"),
    ],
)
def test_compute(fields: dict[str, float], largest: str) -> None:
    evidence = found(**fields).evidence

    assert list(evidence) == ["overall", "compute or memory", "what computes"]
    assert str(evidence["compute or memory"]).startswith("compute: 11%")
    assert str(evidence["what computes"]).startswith(largest)


def test_bandwidth_that_weights_take() -> None:
    evidence = found(weight_bytes=150 * 10**6).evidence

    assert list(evidence)[1:] == ["compute or memory", "capacity or bandwidth", "weights or KV"]
    assert str(evidence["weights or KV"]).startswith("weights: 7 MiB of weights and 0 MiB of KV")


@pytest.mark.parametrize(("layout", "branch"), [(1.4, "layout"), (1.0, "copies"), (None, "copies")])
def test_bandwidth_that_kv_takes(layout: float | None, branch: str) -> None:
    finding = found(layout=layout, kv_bytes=150 * 10**6)

    assert str(finding.evidence["weights or KV"]).startswith("KV: ")
    assert str(finding.evidence["layout or copies"]).startswith(branch)


@pytest.mark.parametrize(("used_slots", "branch"), [(1250 * 4, "preallocation"), (1250 * 15, "length")])
def test_capacity(used_slots: int, branch: str) -> None:
    now = {"blocks": {"live": 1250, "used_slots": used_slots}, "requests": {"longest": 700}}

    evidence = found(now=now).evidence

    assert str(evidence["capacity or bandwidth"]).startswith("capacity: 98% of the pool")
    assert str(evidence["weights or KV"]) == "KV: the pool has 20 MiB"
    assert str(evidence["preallocation or length"]).startswith(branch)


def test_preemptions_mean_capacity() -> None:
    assert "capacity" in str(found(now={"requests": {"preemptions": 3}}).evidence["capacity or bandwidth"])


def test_without_time_it_is_not_known() -> None:
    assert found(seconds=0.0).verdict is Verdict.UNKNOWN
