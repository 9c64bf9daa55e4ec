"""Step 3, what comes from the cache: as much as there is, and no other answer for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from prefixcache_client.doctor.finding import Finding, Verdict, examples

MOST_LOGPROB_DIFFERENCE = 0.01
"""Between a cold and a warm run of one prompt. They are equal where sums have one order, as on a CPU."""


class Hit(NamedTuple):
    """A prompt whose beginning had been computed before."""

    name: str
    num_prompt_tokens: int
    num_common_tokens: int
    """With the prompt before it that has the longest common beginning."""
    num_cached_tokens: int
    """What the worker found."""

    @property
    def num_expected_tokens(self) -> int:
        """One token is always computed, so that there are logits."""
        return min(self.num_common_tokens, self.num_prompt_tokens - 1)


class Twins(NamedTuple):
    """One prompt answered twice: without the cache, and on what another request had left in it."""

    name: str
    num_cached_tokens: int
    """Of the second."""
    same_tokens: bool
    logprob_difference: float
    """The largest, over the tokens that both have, up to the first that differs."""


def check_hits(hits: Sequence[Hit], *, is_undisturbed: bool) -> Finding:
    """Every prompt finds min(common, length - 1) tokens.

    Accuses only an undisturbed worker: evictions and others' requests may take what was there.
    """
    short = [hit for hit in hits if hit.num_cached_tokens < hit.num_expected_tokens]
    told = [
        f"{hit.name}: {hit.num_cached_tokens} of {hit.num_expected_tokens} tokens cached" for hit in short
    ]
    finding = partial(
        Finding,
        step=3,
        name="hits",
        evidence={"num_prompts": len(hits), "num_short": len(short)} | examples(told),
    )
    if not hits:
        return finding(
            verdict=Verdict.UNKNOWN, sentence="No prompt was sent twice: the worker shares no prefixes."
        )
    if not short:
        return finding(
            verdict=Verdict.HEALTHY,
            sentence=f"All {len(hits)} prompts, at block borders and beside them, found their whole common "
            "beginning.",
        )
    if not is_undisturbed:
        return finding(
            verdict=Verdict.UNKNOWN,
            sentence=f"{len(short)} of {len(hits)} prompts found less than their common beginning, while "
            "blocks were evicted or others used the worker.",
            advice="Examine it while nobody else uses it.",
        )
    return finding(
        verdict=Verdict.FAULT,
        sentence=f"{len(short)} of {len(hits)} prompts found less than their common beginning; {told[0]}.",
        pitfall="lost-border-hit",
        advice="Look at how a match is rounded where it ends at the border of a block.",
    )


def check_twins(twins: Sequence[Twins]) -> Finding:
    """A hit changes no answer."""
    warm = [each for each in twins if each.num_cached_tokens]
    largest = max((each.logprob_difference for each in warm), default=0.0)
    finding = partial(
        Finding,
        step=3,
        name="answers",
        evidence={
            "num_prompts": len(warm),
            "largest_logprob_difference": largest,
            "num_other_tokens": sum(not each.same_tokens for each in warm),
        },
    )
    if not warm:
        return finding(
            verdict=Verdict.UNKNOWN, sentence="No answer came from the cache, so there is nothing to compare."
        )
    wrong = [each for each in warm if each.logprob_difference > MOST_LOGPROB_DIFFERENCE]
    if wrong:
        return finding(
            verdict=Verdict.FAULT,
            sentence=f"{len(wrong)} of {len(warm)} prompts are answered otherwise from the cache "
            f"({wrong[0].name}): log-probabilities differ by up to {largest:.3g}.",
            pitfall="scales-left-behind",
            advice="Look at what is copied with a block whose beginning is shared: rows, scales, all heads.",
        )
    return finding(
        verdict=Verdict.HEALTHY,
        sentence=f"{len(warm)} prompts are answered alike with and without the cache; log-probabilities "
        f"differ by at most {largest:.2g}.",
    )
