"""Log-probabilities of tokens, as the model states them."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch

from prefixcache_worker.engine.request import TokenLogprobs

ROWS_AT_ONCE = 64
"""Rows of the vocabulary's size that are in memory a second time."""


def token_logprobs(
    logits: torch.Tensor,  # [at least num_rows, vocabulary_size] float32, as they come from the model
    token_ids: SequenceOf[int],  # [num_rows] the token that follows each row
    num_top: SequenceOf[int | None],  # [num_rows] likeliest tokens to name; None: say nothing of the row
) -> list[TokenLogprobs | None]:
    """What the model says of the tokens: the log-softmax of its logits, before anything that sampling does.

    A row does not depend on the others. Cost: a log-softmax and a partial sort of the rows concerned.
    """
    scores: list[TokenLogprobs | None] = [None] * len(token_ids)
    rows = [row for row, count in enumerate(num_top) if count is not None]
    for start in range(0, len(rows), ROWS_AT_ONCE):
        some = rows[start : start + ROWS_AT_ONCE]
        logprobs = logits[some].log_softmax(1)
        chosen = logprobs[range(len(some)), [token_ids[row] for row in some]]
        counts = [num_top[row] or 0 for row in some]
        top = logprobs.topk(min(max(counts), logprobs.shape[1]))
        columns = (some, counts, chosen.tolist(), top.indices.tolist(), top.values.tolist())
        for row, count, logprob, ids, values in zip(*columns, strict=True):
            scores[row] = TokenLogprobs(logprob, tuple(ids[:count]), tuple(values[:count]))
    return scores
