"""Step 5: are block size, headroom and pool what the load needs?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prefixcache_client.answers import ModelInfo
from prefixcache_client.cache_answers import Stats
from prefixcache_client.doctor.finding import Finding, Verdict

LEAST_BLOCK_SIZE, MOST_BLOCK_SIZE = 16, 64
LEAST_HEADROOM, MOST_HEADROOM = 0.2, 0.3
POOL_OVER_PEAK = 1.5
HEALTHY_USAGE = (0.7, 0.85)
ALARMING_USAGE = 0.95
LEAST_USAGE = 0.5
MOST_WASTE = 0.5
LEAST_JUDGED_BLOCKS = 16
"""Waste of fewer live blocks is the empty part of some last blocks."""
LEAST_LOAD_REQUESTS = 4
"""A worker that runs fewer requests is not under load, and its usage says nothing."""
USUAL_POOL_BYTES = 2**30
"""Before headroom, where the settings of a worker on a CPU say nothing."""
_UNIT_BYTES = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingFigures:
    """What was measured for step 5."""

    info: ModelInfo
    settings: Mapping[str, str]
    """By flag without its dashes."""
    stats: Stats
    """Before the doctor sent anything."""
    own_preemptions: int
    """Requests of the doctor that had to give way."""
    own_blocks: int
    """Blocks that the doctor's requests have needed at the same time, at most."""


def check_sizing(figures: SizingFigures) -> list[Finding]:
    """Every finding of step 5."""
    return [
        _check_block_size(figures.info.block_size),
        _check_headroom(figures),
        _check_pool_as_asked(figures),
        _check_longest(figures),
        _check_pool_against_peak(figures),
        _check_usage(figures),
        _check_waste(figures.stats),
        _check_preemptions(figures),
    ]


def memory_bytes(text: str) -> int | None:
    """The bytes of a setting such as "1GiB", "512 MiB" or "1073741824"; None when it is none."""
    digits = text.strip().rstrip("BIKMGTbikmgt ")
    unit = text.strip()[len(digits) :].strip().upper()
    try:
        return int(float(digits) * _UNIT_BYTES[unit])
    except (ValueError, KeyError, OverflowError):
        return None


def asked_blocks(settings: Mapping[str, str], info: ModelInfo) -> int | None:
    """Blocks that the settings ask for before headroom; None when they leave it to the worker's device."""
    if blocks := settings.get("kv-blocks", ""):
        return int(blocks) if blocks.isdigit() else None
    if memory := settings.get("kv-memory", ""):
        num_bytes = memory_bytes(memory)
    else:
        num_bytes = USUAL_POOL_BYTES if info.device == "cpu" else None
    return None if num_bytes is None else num_bytes // info.block_bytes


def _check_block_size(block_size: int) -> Finding:
    evidence: dict[str, str | int | float] = {"block_size": block_size}
    if LEAST_BLOCK_SIZE <= block_size <= MOST_BLOCK_SIZE:
        return _healthy("block size", f"Blocks of {block_size} tokens, within 16 to 64.", evidence)
    small = block_size < LEAST_BLOCK_SIZE
    return Finding(
        step=5,
        name="block size",
        verdict=Verdict.WARNING,
        sentence=f"Blocks of {block_size} tokens: "
        + (
            "every token or few cost an entry in tables and tree."
            if small
            else "short requests leave most of their last block empty, and shared ones copy more."
        ),
        evidence=evidence,
        pitfall="tiny-blocks" if small else "huge-blocks",
        advice="Start the worker with --block-size 16, 32 or 64.",
    )


def _check_headroom(figures: SizingFigures) -> Finding:
    text = figures.settings.get("kv-headroom", "")
    try:
        headroom = float(text)
    except ValueError:
        return _unknown("headroom", "The settings do not tell the headroom.")
    evidence: dict[str, str | int | float] = {"headroom": headroom}
    if LEAST_HEADROOM <= headroom <= MOST_HEADROOM:
        return _healthy("headroom", f"{headroom:.0%} of headroom, within 20 to 30 %.", evidence)
    return Finding(
        step=5,
        name="headroom",
        verdict=Verdict.WARNING,
        sentence=f"{headroom:.0%} of headroom on top of what was asked for; 20 to 30 % is usual.",
        evidence=evidence,
        pitfall="pool-too-small" if headroom < LEAST_HEADROOM else "idle-pool",
        advice="Start the worker with --kv-headroom 0.25.",
    )


def _check_pool_as_asked(figures: SizingFigures) -> Finding:
    asked = asked_blocks(figures.settings, figures.info)
    there = figures.stats.blocks.total
    if asked is None:
        return _unknown("pool size", f"The pool has {there:,} blocks; the settings do not say how many.")
    evidence: dict[str, str | int | float] = {
        "asked_blocks": asked,
        "blocks": there,
        "pool_bytes": there * figures.stats.blocks.block_bytes,
    }
    if there >= asked:
        return _healthy(
            "pool size", f"The pool has {there:,} blocks, and {asked:,} were asked for.", evidence
        )
    return Finding(
        step=5,
        name="pool size",
        verdict=Verdict.FAULT,
        sentence=f"The pool has {there:,} blocks, and the settings ask for {asked:,}.",
        evidence=evidence,
        pitfall="pool-too-small",
        advice="Look at what is taken off between the setting and the allocation.",
    )


def _check_longest(figures: SizingFigures) -> Finding:
    blocks, longest = figures.stats.blocks, figures.info.context_length
    ratio = blocks.total * blocks.block_size / longest
    evidence: dict[str, str | int | float] = {"blocks": blocks.total, "context_length": longest}
    told = f"The pool has room for {ratio:.1f} requests of the longest kind, {longest:,} tokens"
    if ratio >= POOL_OVER_PEAK:
        return _healthy("pool against context", f"{told}.", evidence)
    return Finding(
        step=5,
        name="pool against context",
        verdict=Verdict.WARNING,
        sentence=f"{told}: one of them takes it all, and whatever runs beside it gives way.",
        evidence=evidence,
        pitfall="pool-too-small",
        advice="Give the pool more memory with --kv-memory, or allow shorter requests with --context-length.",
    )


def _check_pool_against_peak(figures: SizingFigures) -> Finding:
    blocks = figures.stats.blocks
    evidence: dict[str, str | int | float] = {"peak_live_blocks": blocks.peak_live, "blocks": blocks.total}
    if blocks.peak_live == 0:
        return _unknown("pool against peak", "No request has run yet, so there is no peak to compare with.")
    ratio = blocks.total / blocks.peak_live
    evidence["times_peak"] = ratio
    needed = POOL_OVER_PEAK * blocks.peak_live * blocks.block_bytes
    told = f"The pool has room for {ratio:.1f} times the blocks that requests held at the peak"
    if ratio >= POOL_OVER_PEAK:
        return _healthy("pool against peak", f"{told}.", evidence)
    return Finding(
        step=5,
        name="pool against peak",
        verdict=Verdict.WARNING,
        sentence=f"{told}; {POOL_OVER_PEAK} times is advised.",
        evidence=evidence,
        pitfall="pool-too-small",
        advice=f"Give the pool {needed / 2**20:,.0f} MiB with --kv-memory, or let fewer requests run.",
    )


def _check_usage(figures: SizingFigures) -> Finding:
    stats = figures.stats
    usage = stats.blocks.live / stats.blocks.total if stats.blocks.total else 0.0
    evidence: dict[str, str | int | float] = {
        "usage": usage,
        "running_requests": stats.requests.running,
        "waiting_requests": stats.requests.waiting,
    }
    if stats.requests.running + stats.requests.waiting < LEAST_LOAD_REQUESTS:
        return _unknown(
            "usage", f"{usage:.0%} of the pool is held, and there is no load to judge it by.", evidence
        )
    most_running = figures.settings.get("max-running", "")
    is_full = most_running.isdigit() and stats.requests.running >= int(most_running)
    low, high = HEALTHY_USAGE
    held = f"{usage:.0%} of the pool is held by {stats.requests.running} requests"
    if usage > ALARMING_USAGE:
        advice, pitfall = "Give the pool more memory, or let fewer requests run at once.", "pool-too-small"
    elif usage < LEAST_USAGE and not is_full:
        return _unknown("usage", f"{held}, and more may run: too little load to judge it by.", evidence)
    elif usage < LEAST_USAGE:
        advice, pitfall = "Take memory from the pool, or let more requests run at once.", "idle-pool"
    else:
        where = "within" if low <= usage <= high else "near"
        return _healthy("usage", f"{held}, {where} 70 to 85 %.", evidence)
    return Finding(
        step=5,
        name="usage",
        verdict=Verdict.WARNING,
        sentence=f"{held}; 70 to 85 % is healthy.",
        evidence=evidence,
        pitfall=pitfall,
        advice=advice,
    )


def _check_waste(stats: Stats) -> Finding:
    blocks = stats.blocks
    if blocks.live < LEAST_JUDGED_BLOCKS:
        return _unknown("waste", f"Requests hold {blocks.live} blocks, too few to judge their waste by.")
    waste = 1 - blocks.used_slots / (blocks.live * blocks.block_size)
    evidence: dict[str, str | int | float] = {"waste": waste, "live_blocks": blocks.live}
    if waste < MOST_WASTE:
        return _healthy("waste", f"{waste:.0%} of the slots that requests hold are empty.", evidence)
    return Finding(
        step=5,
        name="waste",
        verdict=Verdict.WARNING,
        sentence=f"{waste:.0%} of the slots that requests hold are empty; less than 50 % is healthy.",
        evidence=evidence,
        pitfall="huge-blocks",
        advice="Use --scheme shared or paged, and smaller blocks.",
    )


def _check_preemptions(figures: SizingFigures) -> Finding:
    evidence: dict[str, str | int | float] = {
        "preemptions": figures.stats.requests.preemptions,
        "own_preemptions": figures.own_preemptions,
        "own_blocks": figures.own_blocks,
    }
    if figures.own_preemptions:
        return Finding(
            step=5,
            name="preemptions",
            verdict=Verdict.WARNING,
            sentence=f"{figures.own_preemptions} requests had to give way while the doctor's held at most "
            f"{figures.own_blocks} blocks.",
            evidence=evidence,
            pitfall="pool-too-small",
            advice="Give the pool more memory with --kv-memory.",
        )
    if figures.stats.requests.preemptions:
        return Finding(
            step=5,
            name="preemptions",
            verdict=Verdict.WARNING,
            sentence=f"{figures.stats.requests.preemptions:,} times since its start the worker had to take a "
            "running request's blocks away.",
            evidence=evidence,
            pitfall="pool-too-small",
            advice="Give the pool more memory with --kv-memory, or let fewer requests run at once.",
        )
    return _healthy("preemptions", "No request has had to give way.", evidence)


def _healthy(name: str, sentence: str, evidence: Mapping[str, str | int | float]) -> Finding:
    return Finding(step=5, name=name, verdict=Verdict.HEALTHY, sentence=sentence, evidence=dict(evidence))


def _unknown(name: str, sentence: str, evidence: Mapping[str, str | int | float] | None = None) -> Finding:
    return Finding(
        step=5, name=name, verdict=Verdict.UNKNOWN, sentence=sentence, evidence=dict(evidence or {})
    )
