"""Random tokens that every model takes."""

from __future__ import annotations

import random

from prefixcache_client.answers import ModelInfo

_LEAST_TOKEN_ID, _MOST_TOKEN_ID = 1000, 10_000
"""Ordinary words in every large vocabulary; of a smaller one, the upper half."""


def random_tokens(rng: random.Random, info: ModelInfo, count: int) -> list[int]:
    """So many of them."""
    stop = min(_MOST_TOKEN_ID, info.vocabulary_size)
    start = min(_LEAST_TOKEN_ID, stop // 2)
    return [rng.randrange(start, stop) for _ in range(count)]
