"""From logits to the next token of each sequence."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

import torch

from prefixcache_worker.engine.request import SamplingParams

MIN_TEMPERATURE = 1e-5
"""Anything colder is greedy in effect; dividing by less overflows float32."""

NUM_LIKELY_TOKENS = 1024
"""top_p looks at so many likeliest tokens first and sorts the whole vocabulary only if they fall short."""


class SamplingRow(NamedTuple):
    """How the token of one row of logits is chosen."""

    params: SamplingParams
    generator: torch.Generator | None  # None exactly when greedy


def choice_generator(seed: int | None, index: int) -> torch.Generator:
    """The random stream of choice `index`: its own for every (seed, index), fresh without a seed."""
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
        generator.manual_seed(int.from_bytes(digest, "little", signed=True))
    return generator


def sample(
    logits: torch.Tensor,  # [num_rows, vocabulary_size] float32
    rows: SequenceOf[SamplingRow],
) -> list[int]:
    """One token per row. Greedy rows take the first of the likeliest; no row depends on another.

    Cost: one pass over the logits, and a partial sort per row with top_k or top_p.
    """
    tokens = logits.argmax(dim=-1).tolist()
    for i, (params, generator) in enumerate(rows):
        if generator is not None:
            tokens[i] = _sample_row(logits[i].cpu(), params, generator)
    return tokens


def _sample_row(logits: torch.Tensor, params: SamplingParams, generator: torch.Generator) -> int:
    # Shifted first, so that the likeliest token stays finite at any temperature.
    scaled = (logits - logits.max()) / max(params.temperature, MIN_TEMPERATURE)
    if params.top_k > 0 and params.top_k < len(scaled):
        kept = scaled.topk(params.top_k)
        return int(kept.indices[_draw(_nucleus(kept.values.softmax(-1), params.top_p), generator)])
    probabilities = scaled.softmax(-1)
    if params.top_p >= 1:
        return _draw(probabilities, generator)
    likely, token_ids = probabilities.topk(min(NUM_LIKELY_TOKENS, len(probabilities)))
    if likely.sum() < params.top_p:
        likely, token_ids = probabilities.sort(descending=True)
    return int(token_ids[_draw(_nucleus(likely, params.top_p), generator)])


def _nucleus(
    probabilities: torch.Tensor,  # [n], descending
    top_p: float,
) -> torch.Tensor:  # [n], zero outside the nucleus
    """The smallest set of likeliest tokens whose probability reaches top_p (Holtzman et al. 2020)."""
    before = probabilities.cumsum(-1) - probabilities
    nucleus = before < top_p
    nucleus[0] = True
    return probabilities * nucleus


def _draw(weights: torch.Tensor, generator: torch.Generator) -> int:
    """Index i with probability proportional to weights[i], as the winner of an exponential race."""
    return int((weights / torch.empty_like(weights).exponential_(generator=generator)).argmax())
