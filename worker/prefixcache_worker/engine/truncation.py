"""top_k, top_p and min_p: which tokens are likely enough to be drawn."""

from __future__ import annotations

import numpy as np

from prefixcache_worker.engine.request import SamplingParams


def truncate(
    probabilities: np.ndarray,  # [num_tokens] float32
    params: SamplingParams,
) -> None:
    """Set to zero, in place, what the parameters leave out. At least one token stays.

    A token stays if it is among the `top_k` likeliest and at least `min_p` times as likely as the likeliest
    (Nguyen et al. 2024, "Turning up the heat: min-p sampling"). Of those, the likeliest stay that are
    needed to reach `top_p` of their probability together (Holtzman et al. 2020, "The curious case of
    neural text degeneration"). So it is always the likeliest that stay, and the rest is cut off at one
    probability; of tokens that have just this one, those with the lower ids stay.

    Cost: a few passes over the row, which fits a processor's cache; with `top_p` also a sort of the tokens
    that could be needed.
    """
    num_tokens = len(probabilities)
    kept = probabilities
    if 0 < params.top_k < num_tokens:
        kept = np.partition(kept, num_tokens - params.top_k)[num_tokens - params.top_k :]
    if params.min_p > 0:
        kept = kept.compress(kept >= np.float32(params.min_p) * kept.max())
    if params.top_p < 1:
        kept = _nucleus(kept, params.top_p)
    cutoff = kept.min()
    probabilities *= probabilities >= cutoff
    equal = np.flatnonzero(probabilities == cutoff)
    probabilities[equal[np.count_nonzero(kept == cutoff) :]] = 0


def _nucleus(
    probabilities: np.ndarray,  # [n] float32
    top_p: float,
) -> np.ndarray:  # [at most n] float32, descending
    """The fewest that reach `top_p` of the sum."""
    total = probabilities.sum(dtype=np.float64)
    # All below this bound have together less than what is not needed, whatever the rounding.
    bound = np.float32((1 - top_p) * total / (1.01 * len(probabilities)))
    likely = probabilities.compress(probabilities >= bound)
    descending = -np.sort(-likely)
    up_to = np.cumsum(descending, dtype=np.float64)
    num_needed = np.count_nonzero(up_to - descending < top_p * total)
    return descending[: max(1, num_needed)]
