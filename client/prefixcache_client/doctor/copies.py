"""Step 4: what a profiled answer copied, and where its time went."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from prefixcache_client.diagnosis_answers import StepProfile
from prefixcache_client.doctor.finding import Finding, Verdict

LEAST_COPIED_SHARE = 0.5
"""Of the KV of a row: a copy that grows by less with each row is not one of the KV."""
LEAST_FILLED_BLOCKS = 0.5
"""Filled in the mean step, in blocks."""
LEAST_FILLED_BYTES = 8192
"""Filled in the mean step: masks are everyday's, and the blocks of a tiny model are no larger."""
GATHERING_BACKEND = "torch"
"""The attention that copies rows whose blocks do not lie side by side: torch reads no other way."""


class ProfiledAnswer(NamedTuple):
    """Some decode steps of one sequence."""

    num_rows: int
    """Before the middle one of them."""
    profile: StepProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFigures:
    """What was measured for step 4."""

    answers: tuple[ProfiledAnswer, ...]
    """Behind few rows and behind many, in this order."""
    beginnings: StepProfile
    """Steps in which requests begin."""
    attention: str
    """The backend that reads the pool."""
    is_sparse: bool
    """Whether a step chooses the blocks that it reads, and copies what it chooses by."""
    token_bytes: int
    block_size: int
    read_bytes_per_second: float
    """Of the machine's memory."""
    is_alone: bool
    """Whether the profiled steps ran nothing for others: these fill masks for their own prompts."""


def check_copies(figures: CopyFigures) -> list[Finding]:
    """Copies that grow with the answer, fills in the hot path, and where the time goes."""
    return [
        _check_growth(figures),
        _check_fills(figures),
        _time_shares(figures.answers[-1].profile, figures.read_bytes_per_second),
    ]


def copied_bytes_per_token(profile: StepProfile) -> float:
    """Without fills. Requires: it has tokens."""
    return (profile.copied_bytes - profile.filled_bytes) / profile.num_tokens


def _check_growth(figures: CopyFigures) -> Finding:
    first, last = figures.answers[0], figures.answers[-1]
    num_copies = last.profile.num_copies / last.profile.num_tokens
    num_bytes = copied_bytes_per_token(last.profile)
    growth = (num_bytes - copied_bytes_per_token(first.profile)) / max(1, last.num_rows - first.num_rows)
    finding = partial(
        Finding,
        step=4,
        name="copies",
        evidence={
            "copies_per_token": num_copies,
            "copied_bytes_per_token": num_bytes,
            "num_rows": last.num_rows,
            "growth_bytes_per_row": growth,
            "token_bytes": figures.token_bytes,
        },
    )
    copies = f"A token takes {num_copies:.1f} copies with {num_bytes:,.0f} bytes"
    told = f"{copies}, {growth:,.0f} more with every row, whose KV has {figures.token_bytes:,}"
    if last.num_rows <= first.num_rows:
        return finding(verdict=Verdict.UNKNOWN, sentence=f"{told}; the context is too short to tell growth.")
    if growth < LEAST_COPIED_SHARE * figures.token_bytes:
        return finding(verdict=Verdict.HEALTHY, sentence=f"{copies}; they do not grow with its rows.")
    if figures.is_sparse:
        return finding(
            verdict=Verdict.UNKNOWN,
            sentence=f"{told}; --top-k-blocks copies what it chooses blocks by.",
            advice="Examine a worker without --top-k-blocks.",
        )
    if figures.attention == GATHERING_BACKEND:
        return finding(
            verdict=Verdict.UNKNOWN,
            sentence=f"{told}; attention by torch alone copies rows that do not lie side by side.",
            advice="With a C++ compiler on the worker's machine, --attention native reads them in place.",
        )
    return finding(
        verdict=Verdict.FAULT,
        sentence=f"{told}.",
        pitfall="growing-copy",
        advice="Look in the trace (--trace FILE) for the operation that copies what was there already.",
    )


def _check_fills(figures: CopyFigures) -> Finding:
    profiles = [figures.beginnings, *(answer.profile for answer in figures.answers)]
    filled = max(profile.filled_bytes / profile.num_steps for profile in profiles)
    block_bytes = figures.token_bytes * figures.block_size
    beginning = figures.beginnings
    finding = partial(
        Finding,
        step=4,
        name="fills",
        evidence={
            "filled_bytes_per_step": filled,
            "filled_bytes_per_step_where_requests_begin": beginning.filled_bytes / beginning.num_steps,
            "block_bytes": block_bytes,
        },
    )
    if filled < max(LEAST_FILLED_BYTES, LEAST_FILLED_BLOCKS * block_bytes):
        return finding(
            verdict=Verdict.HEALTHY,
            sentence=f"A step fills {filled:,.0f} bytes; a block has {block_bytes:,}.",
        )
    if not figures.is_alone:
        return finding(
            verdict=Verdict.UNKNOWN,
            sentence=f"A step fills {filled:,.0f} bytes, some of them for the requests of others.",
            advice="Examine it while nobody else uses it.",
        )
    return finding(
        verdict=Verdict.FAULT,
        sentence=f"A step fills {filled:,.0f} bytes, {filled / block_bytes:.1f} times those of a block.",
        pitfall="zero-in-hot-path",
        advice="Prepare the pool when the worker starts; nobody reads a row before it is written.",
    )


def _time_shares(profile: StepProfile, read_bytes_per_second: float) -> Finding:
    finding = partial(Finding, step=4, name="time")
    if profile.seconds <= 0:
        return finding(verdict=Verdict.UNKNOWN, sentence="The profiler saw no time pass.", evidence={})
    parts = (profile.attention_seconds, profile.product_seconds, profile.copy_seconds)
    attention, products, copies = (part / profile.seconds for part in parts)
    num_bytes = profile.kv_bytes + profile.weight_bytes
    bandwidth = num_bytes / profile.seconds / read_bytes_per_second
    return finding(
        verdict=Verdict.HEALTHY,
        sentence=f"Attention takes {attention:.0%} of a step, products with the weights {products:.0%}, "
        f"copies {copies:.0%}; {bandwidth:.0%} of the memory's bandwidth is used.",
        evidence={
            "attention_share": attention,
            "product_share": products,
            "copy_share": copies,
            "read_bytes_per_step": num_bytes / profile.num_steps,
            "bandwidth_share": bandwidth,
        },
    )
