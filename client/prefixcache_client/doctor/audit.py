"""Step 3: what an audited run of the mixed workload tells of every step's rows, and of the indexes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from prefixcache_client.diagnosis_answers import StepFault, StepFinding, StepRecord
from prefixcache_client.doctor.finding import Finding, Verdict, examples
from prefixcache_client.doctor.hits import Hit, Twins, check_hits, check_twins
from prefixcache_client.doctor.releases import End, check_releases

LEAST_SAVABLE_ROWS = 1000
"""Where sharing could save fewer rows than this in all, it tells nothing that it did not."""
LEAST_SAVED_SHARE = 0.5
"""Of the rows that sharing could save."""
LEAST_COMMON_ROWS = 96
"""Steps whose sequences have fewer rows in common, in the mean, are not judged: short runs do not pay, and
are read once per sequence."""

_NOT_OF_ROWS = frozenset({StepFault.COUNTS, StepFault.COPY})


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFigures:
    """What was measured for step 3."""

    steps: tuple[StepRecord, ...]
    hits: tuple[Hit, ...]
    ends: tuple[End, ...]
    twins: tuple[Twins, ...]
    index_findings: tuple[str, ...]
    num_nodes: int
    """That were looked at for them."""
    num_preemptions: int
    """During the run."""
    num_evicted: int
    """Blocks, during the run."""
    is_alone: bool
    """Whether nobody else used the worker meanwhile."""


def check_audit(figures: AuditFigures) -> list[Finding]:
    """Every finding of step 3."""
    releases = check_releases(figures.ends, is_alone=figures.is_alone)
    counts = next((each.pitfall for each in releases if each.pitfall is not None), "leaked-reference")
    return [
        *_check_steps(figures.steps, counts),
        _check_sharing(figures.steps),
        check_hits(figures.hits, is_undisturbed=figures.is_alone and not figures.num_evicted),
        *releases,
        check_twins(figures.twins),
        _check_indexes(figures, counts),
    ]


def _check_steps(steps: Sequence[StepRecord], counts: str) -> list[Finding]:
    """Broken rules, one finding for each pitfall that explains them; `counts` is that of wrong counts."""
    finding = partial(Finding, step=3, name="rows")
    evidence: dict[str, str | int | float] = {
        "num_steps": len(steps),
        "rows_read": sum(step.rows_read for step in steps),
        "rows_needed": sum(step.rows_needed for step in steps),
    }
    if not steps:
        return [finding(verdict=Verdict.UNKNOWN, sentence="No engine step was seen.", evidence=evidence)]
    rows = _pitfall_of_rows(steps)
    broken: dict[str, list[StepFinding]] = {}
    for step in steps:
        for each in step.findings:
            pitfall = {StepFault.COUNTS: counts, StepFault.COPY: "scales-left-behind"}.get(each.fault, rows)
            broken.setdefault(pitfall, []).append(each)
    if not broken:
        return [
            finding(
                verdict=Verdict.HEALTHY,
                sentence=f"{len(steps):,} steps read and wrote what the lengths of their sequences call for.",
                evidence=evidence,
            )
        ]
    return [
        finding(
            verdict=Verdict.FAULT,
            sentence=f"{len(each):,} rules were broken in {len(steps):,} steps; {each[0].sentence}.",
            evidence=evidence | examples([one.sentence for one in each]),
            pitfall=pitfall,
            advice=_WHERE_TO_LOOK[pitfall],
        )
        for pitfall, each in broken.items()
    ]


_WHERE_TO_LOOK = {
    "extra-row": "Look for start + length + 1 where the rows to read are computed.",
    "pad-to-longest": "Look for a maximum over the batch where the rows to read are computed.",
    "stale-offset": "Look for an offset that is added to from sequence to sequence and never set to 0.",
    "scales-left-behind": "Look at what is copied with a block: rows, scales, all heads.",
    "leaked-reference": "Look for a reference that is taken twice, or given back once too few.",
    "late-free": "Look at what runs between the end of a request and the release of its handle.",
    "drifting-gauge": "Count what is there when somebody asks, instead of adding and taking away.",
}
"""The advice, by pitfall."""


def _pitfall_of_rows(steps: Sequence[StepRecord]) -> str:
    """What explains most of the wrong places and numbers of rows.

    As many rows as the longest sequence has, and for none more, is padding. One row too many, whatever the
    length and the batch, is an end that is counted twice. Anything else moves about: a place that is carried
    over.
    """
    kinds = Counter({"stale-offset": 0})
    for step in steps:
        excesses = [each for each in step.findings if each.fault is StepFault.ROWS_READ_MORE]
        is_bounded = all(each.found <= step.longest for each in excesses)
        for each in excesses:
            if is_bounded and each.found == step.longest:
                kinds["pad-to-longest"] += 1
            elif each.found == each.expected + 1:
                kinds["extra-row"] += 1
            else:
                kinds["stale-offset"] += 1
    return kinds.most_common(1)[0][0]


def _check_sharing(steps: Sequence[StepRecord]) -> Finding:
    judged = [step for step in steps if _has_long_common_runs(step)]
    savable = sum(step.rows_unshared - step.rows_needed for step in judged)
    saved = sum(step.rows_unshared - step.rows_read for step in judged)
    finding = partial(
        Finding,
        step=3,
        name="shared reads",
        evidence={"rows_that_sharing_could_save": savable, "rows_saved": saved},
    )
    if any(each.fault not in _NOT_OF_ROWS for step in steps for each in step.findings):
        return finding(
            verdict=Verdict.UNKNOWN,
            sentence="Wrong rows are read, so how many of them are shared tells nothing.",
            advice="Examine it again when the rows are right.",
        )
    if savable < LEAST_SAVABLE_ROWS:
        return finding(
            verdict=Verdict.UNKNOWN, sentence=f"Sharing could save {savable:,} rows, too few to judge it by."
        )
    if saved < LEAST_SAVED_SHARE * savable:
        return finding(
            verdict=Verdict.FAULT,
            sentence=f"Sharing could save {savable:,} rows and saved {max(0, saved):,}: sequences with "
            "the same blocks read them once each.",
            pitfall="unshared-reads",
            advice="Look at why the plan does not join sequences with the same blocks into one read.",
        )
    return finding(
        verdict=Verdict.HEALTHY, sentence=f"Sharing saved {saved:,} of the {savable:,} rows that it could."
    )


def _has_long_common_runs(step: StepRecord) -> bool:
    """Each sequence but the first could be spared what it has in common with others."""
    return step.rows_unshared - step.rows_needed >= LEAST_COMMON_ROWS * max(1, step.num_sequences - 1)


def _check_indexes(figures: AuditFigures, counts: str) -> Finding:
    finding = partial(
        Finding,
        step=3,
        name="indexes",
        evidence={"num_nodes": figures.num_nodes} | examples(figures.index_findings),
    )
    if not figures.index_findings:
        return finding(
            verdict=Verdict.HEALTHY,
            sentence=f"Every invariant of the cache holds, over {figures.num_nodes:,} nodes.",
        )
    return finding(
        verdict=Verdict.FAULT,
        sentence=f"{len(figures.index_findings)} invariants of the cache are broken; "
        f"{figures.index_findings[0]}.",
        pitfall=counts,
        advice=_WHERE_TO_LOOK[counts],
    )
