"""Step 5: block size, headroom, pool and usage against the figures of the article."""

from __future__ import annotations

from typing import Any

import pytest
from support.doctor_figures import accused, model_info, stats

from prefixcache_client.cache_answers import Stats
from prefixcache_client.doctor.finding import Finding, Verdict
from prefixcache_client.doctor.sizing import SizingFigures, asked_blocks, check_sizing, memory_bytes

SETTINGS = {"kv-headroom": "0.25", "kv-blocks": "1024"}


def checked(
    *,
    settings: dict[str, str] | None = None,
    now: Stats | None = None,
    own_preemptions: int = 0,
    **info: Any,
) -> list[Finding]:
    return check_sizing(
        SizingFigures(
            info=model_info(**info),
            settings=SETTINGS if settings is None else settings,
            stats=now or stats(),
            own_preemptions=own_preemptions,
            own_blocks=40,
        )
    )


def verdict(name: str, **changes: Any) -> Verdict:
    [finding] = [finding for finding in checked(**changes) if finding.name == name]
    return finding.verdict


def test_a_healthy_worker_is_not_accused() -> None:
    assert accused(checked()) == {}


@pytest.mark.parametrize(
    ("size", "pitfall"),
    [
        (1, "tiny-blocks"),
        (8, "tiny-blocks"),
        (16, None),
        (64, None),
        (128, "huge-blocks"),
        (256, "huge-blocks"),
    ],
)
def test_block_size(size: int, pitfall: str | None) -> None:
    assert accused(checked(block_size=size)) == ({} if pitfall is None else {"block size": pitfall})


@pytest.mark.parametrize(
    ("headroom", "accusation"),
    [
        ("0.0", {"headroom": "pool-too-small"}),
        ("0.19", {"headroom": "pool-too-small"}),
        ("0.2", {}),
        ("0.3", {}),
        ("0.5", {"headroom": "idle-pool"}),
    ],
)
def test_headroom(headroom: str, accusation: dict[str, str]) -> None:
    assert accused(checked(settings=SETTINGS | {"kv-headroom": headroom})) == accusation


def test_a_pool_smaller_than_asked_for() -> None:
    findings = checked(now=stats(blocks={"total": 80, "free": 80, "peak_live": 10}))

    assert accused(findings) == {"pool size": "pool-too-small"}
    assert "80 blocks" in findings[2].sentence
    assert "1,024" in findings[2].sentence


@pytest.mark.parametrize(
    ("context_length", "accusation"),
    [(13_653, {}), (13_654, {"pool against context": "pool-too-small"})],
)
def test_one_and_a_half_of_the_longest_requests(context_length: int, accusation: dict[str, str]) -> None:
    assert accused(checked(context_length=context_length)) == accusation


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1GiB", 2**30),
        ("512 MiB", 2**29),
        ("1.5KiB", 1536),
        ("4096", 4096),
        ("2B", 2),
        ("", None),
        ("many", None),
        ("1QiB", None),
    ],
)
def test_memory_sizes(text: str, num_bytes: int | None) -> None:
    assert memory_bytes(text) == num_bytes


@pytest.mark.parametrize(
    ("settings", "device", "num_blocks"),
    [
        ({"kv-blocks": "7", "kv-memory": "1GiB"}, "cpu", 7),
        ({"kv-memory": "160KiB"}, "cpu", 10),
        ({}, "cpu", 2**30 // 16384),
        ({}, "cuda", None),
    ],
)
def test_blocks_that_are_asked_for(settings: dict[str, str], device: str, num_blocks: int | None) -> None:
    assert asked_blocks(settings, model_info(device=device)) == num_blocks


@pytest.mark.parametrize(("peak", "accusation"), [(853, {}), (854, {"pool against peak": "pool-too-small"})])
def test_one_and_a_half_times_the_peak(peak: int, accusation: dict[str, str]) -> None:
    assert accused(checked(now=stats(blocks={"peak_live": peak}))) == accusation


def test_without_a_peak_nothing_is_compared() -> None:
    assert verdict("pool against peak", now=stats(blocks={"peak_live": 0})) is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("live", "running", "expected"),
    [
        (1279, 1, Verdict.UNKNOWN),  # no load
        (1279, 8, Verdict.WARNING),
        (1024, 8, Verdict.HEALTHY),
        (700, 8, Verdict.HEALTHY),
        (100, 7, Verdict.UNKNOWN),  # one more may run
        (100, 8, Verdict.WARNING),
    ],
)
def test_usage_under_load(live: int, running: int, expected: Verdict) -> None:
    now = stats(blocks={"live": live, "used_slots": live * 15}, requests={"running": running})

    assert verdict("usage", now=now, settings={**SETTINGS, "max-running": "8"}) is expected


@pytest.mark.parametrize(
    ("live", "used_slots", "expected"),
    [(15, 0, Verdict.UNKNOWN), (100, 801, Verdict.HEALTHY), (100, 800, Verdict.WARNING)],
)
def test_waste(live: int, used_slots: int, expected: Verdict) -> None:
    assert verdict("waste", now=stats(blocks={"live": live, "used_slots": used_slots})) is expected


def test_requests_that_gave_way() -> None:
    assert accused(checked(now=stats(requests={"preemptions": 2}))) == {"preemptions": "pool-too-small"}
    assert accused(checked(own_preemptions=1)) == {"preemptions": "pool-too-small"}
