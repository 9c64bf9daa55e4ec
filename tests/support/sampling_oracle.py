"""What sampling should do, in plain Python and float64, one token after the other."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from prefixcache_worker.engine.request import SamplingParams


def adjusted_logits(
    logits: Sequence[float],
    params: SamplingParams,
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    banned: Collection[int] = (),
) -> list[float]:
    """Penalties, then biases, then bans."""
    biases = dict(params.logit_bias)
    adjusted = []
    for token, logit in enumerate(logits):
        if token in prompt or token in output:
            penalty = params.repetition_penalty
            logit = logit / penalty if logit > 0 else logit * penalty
        if token in output:
            logit -= params.frequency_penalty * output.count(token) + params.presence_penalty
        logit += biases.get(token, 0.0)
        adjusted.append(-math.inf if token in banned else logit)
    return adjusted


def distribution(logits: Sequence[float], params: SamplingParams) -> list[float]:
    """Each token's probability, after temperature and truncation, of adjusted logits."""
    top = max(logits)
    weights = [math.exp((logit - top) / params.temperature) for logit in logits]
    order = sorted(range(len(logits)), key=lambda token: (-weights[token], token))
    kept = [token for token in order if weights[token] >= params.min_p * weights[order[0]]]
    kept = kept[: params.top_k or len(kept)]
    needed = params.top_p * sum(weights[token] for token in kept)
    nucleus, reached = [], 0.0
    for token in kept:
        if nucleus and params.top_p < 1 and reached >= needed:
            break
        nucleus.append(token)
        reached += weights[token]
    return [weights[token] / reached if token in nucleus else 0.0 for token in range(len(logits))]


def chi_square(counts: Sequence[int], probabilities: Sequence[float]) -> float:
    """How far the counts are from what the probabilities predict; infinite if something impossible came."""
    total = sum(counts)
    if any(count and not p for count, p in zip(counts, probabilities, strict=True)):
        return math.inf
    return sum((c - total * p) ** 2 / (total * p) for c, p in zip(counts, probabilities, strict=True) if p)
