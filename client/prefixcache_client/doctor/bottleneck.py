"""Step 6: peel the layers. Overall, then compute or memory, capacity or bandwidth, and what takes it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from prefixcache_client.cache_answers import Stats
from prefixcache_client.diagnosis_answers import StepProfile
from prefixcache_client.doctor.finding import Finding, Verdict
from prefixcache_client.doctor.fixed_answers import FixedAnswers
from prefixcache_client.doctor.sizing import MOST_WASTE

MEMORY_BOUND_SHARE = 0.5
"""A step that uses more of the memory's bandwidth than this waits for memory."""
FULL_USAGE = 0.95
"""Of the pool: with more of it held, requests wait for room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckFigures:
    """What was measured on the way, for the tree."""

    answers: FixedAnswers
    profile: StepProfile
    """Of decode steps behind many rows."""
    read_bytes_per_second: float
    """Of the machine's memory."""
    stats: Stats
    """Before the doctor sent anything."""
    layout_times_other: float | None
    """How long attention takes in this order of the pool, over the other order; None when not measured."""


def find_bottleneck(figures: BottleneckFigures) -> Finding:
    """Walk down the tree; the evidence has the figure of each branch that was taken, in order."""
    profile, blocks = figures.profile, figures.stats.blocks
    branches: dict[str, str | int | float] = {
        "overall": f"{figures.answers.tokens_per_second:.1f} tokens/s, first token after "
        f"{1000 * statistics.median(figures.answers.first_token_seconds):.0f} ms, alone",
    }
    usage = blocks.live / blocks.total if blocks.total else 0.0
    bandwidth = figures.read_bytes_per_second * profile.seconds
    if usage > FULL_USAGE or figures.stats.requests.preemptions:
        where = _capacity(figures.stats, usage, branches)
    elif profile.seconds <= 0 or bandwidth <= 0:
        return Finding(
            step=6,
            name="bottleneck",
            verdict=Verdict.UNKNOWN,
            sentence="No time passed in the profiled steps, so what bounds them is not known.",
            evidence=branches,
        )
    else:
        used = (profile.kv_bytes + profile.weight_bytes) / bandwidth
        if used >= MEMORY_BOUND_SHARE:
            branches["compute or memory"] = f"memory: {used:.0%} of its bandwidth is used"
            branches["capacity or bandwidth"] = f"bandwidth: {usage:.0%} of the pool was held"
            where = _bandwidth(figures, branches)
        else:
            branches["compute or memory"] = f"compute: {used:.0%} of the memory's bandwidth is used"
            where = _compute(profile, branches)
    return Finding(
        step=6,
        name="bottleneck",
        verdict=Verdict.HEALTHY,
        sentence=f"What bounds it most: {where}.",
        evidence=branches,
    )


def _capacity(stats: Stats, usage: float, branches: dict[str, str | int | float]) -> str:
    blocks = stats.blocks
    branches["compute or memory"] = "memory: requests wait for blocks"
    branches["capacity or bandwidth"] = (
        f"capacity: {usage:.0%} of the pool held, {stats.requests.preemptions} preemptions so far"
    )
    branches["weights or KV"] = f"KV: the pool has {blocks.total * blocks.block_bytes / 2**20:,.0f} MiB"
    waste = 1 - blocks.used_slots / (blocks.live * blocks.block_size) if blocks.live else 0.0
    if waste >= MOST_WASTE:
        branches["preallocation or length"] = f"preallocation: {waste:.0%} of held slots are empty"
        return "memory that is held for rows that are not there"
    branches["preallocation or length"] = f"length: the longest sequence has {stats.requests.longest:,} rows"
    return "the room of the pool, which long sequences or many of them fill"


def _bandwidth(figures: BottleneckFigures, branches: dict[str, str | int | float]) -> str:
    profile = figures.profile
    kv_bytes, weight_bytes = profile.kv_bytes / profile.num_steps, profile.weight_bytes / profile.num_steps
    read = f"{weight_bytes / 2**20:,.0f} MiB of weights and {kv_bytes / 2**20:,.0f} MiB of KV in a step"
    if weight_bytes >= kv_bytes:
        branches["weights or KV"] = f"weights: {read}"
        return "reading the weights once a step; more requests at a time, or --weights bf16 or int8, help"
    branches["weights or KV"] = f"KV: {read}"
    copy_share = profile.copy_seconds / profile.seconds
    slower = figures.layout_times_other
    if slower is not None and slower - 1 > copy_share:
        branches["layout or copies"] = f"layout: {slower:.2f} times the other order's time"
        return "the order in which the pool lies"
    branches["layout or copies"] = f"copies: {copy_share:.0%} of a step"
    return "reading KV; sharing prefixes, or --kv-dtype int8, helps"


def _compute(profile: StepProfile, branches: dict[str, str | int | float]) -> str:
    parts = {
        "attention": profile.attention_seconds,
        "products with the weights": profile.product_seconds,
        "copies": profile.copy_seconds,
    }
    parts["everything else"] = max(0.0, profile.seconds - sum(parts.values()))
    largest = max(parts, key=lambda name: parts[name])
    share = parts[largest] / profile.seconds
    branches["what computes"] = f"{largest}: {share:.0%} of a step"
    return f"{largest}, {share:.0%} of a step"
