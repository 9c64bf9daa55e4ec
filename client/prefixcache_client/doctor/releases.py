"""Step 3, what is left when requests have ended: no block held, no request counted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from prefixcache_client.doctor.finding import Finding, Verdict


class End(NamedTuple):
    """What was left when requests had ended."""

    name: str
    live_blocks: int
    num_requests: int
    """That the worker counted as running or waiting."""


def check_releases(ends: Sequence[End], *, is_alone: bool) -> list[Finding]:
    """What live requests hold, and how many there are, after each end, in order. Requires: at least one.

    Blocks that are left behind are a leak when every later end leaves more, and were given back late when
    not.
    """
    if not is_alone:
        return [
            Finding(
                step=3,
                name="release",
                verdict=Verdict.UNKNOWN,
                sentence="Others used the worker: what the doctor's requests left behind cannot be told.",
                evidence={},
                advice="Examine it while nobody else uses it.",
            )
        ]
    return [_check_blocks(ends), _check_gauges(ends)]


def _check_blocks(ends: Sequence[End]) -> Finding:
    blocks = [end.live_blocks for end in ends]
    finding = partial(
        Finding,
        step=3,
        name="release",
        evidence={
            "num_ends": len(blocks),
            "most_live_blocks": max(blocks),
            "last_live_blocks": blocks[-1],
        },
    )
    held = next((end for end in ends if end.live_blocks), None)
    if held is None:
        return finding(
            verdict=Verdict.HEALTHY, sentence=f"After each of {len(blocks)} ends no block was held any more."
        )
    told = f"{held.live_blocks} blocks were still held when nothing ran any more, after {held.name}"
    if _grows(blocks):
        return finding(
            verdict=Verdict.FAULT,
            sentence=f"{told}; every end left more, {blocks[-1]} in the end.",
            pitfall="leaked-reference",
            advice="Look for a reference that is taken twice, or given back once too few.",
        )
    return finding(
        verdict=Verdict.FAULT,
        sentence=f"{told}; they were given back when others ended.",
        pitfall="late-free",
        advice="Look at what runs between the end of a request and the release of its handle.",
    )


def _check_gauges(ends: Sequence[End]) -> Finding:
    counts = [end.num_requests for end in ends]
    finding = partial(
        Finding,
        step=3,
        name="gauges",
        evidence={"most_requests": max(counts), "last_requests": counts[-1]},
    )
    counted = next((end for end in ends if end.num_requests), None)
    if counted is None:
        return finding(
            verdict=Verdict.HEALTHY, sentence="The counts of running and waiting requests went back to 0."
        )
    return finding(
        verdict=Verdict.FAULT,
        sentence=f"{counted.num_requests} requests were counted when there was none, after {counted.name}.",
        pitfall="drifting-gauge",
        advice="Count what is there when somebody asks, instead of adding and taking away.",
    )


def _grows(blocks: Sequence[int]) -> bool:
    """Whether every end left more than the one before it, from the first that left something."""
    first = next(i for i, num_blocks in enumerate(blocks) if num_blocks)
    rest = blocks[first:]
    return len(rest) > 1 and all(later > former for former, later in pairwise(rest))
