"""The sequences of one step, laid out for the model."""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

import torch

from prefixcache_worker.attention.plan import AttentionPlan, SequenceSpan
from prefixcache_worker.attention.planner import AttentionPlanner
from prefixcache_worker.engine.sequence import Sequence
from prefixcache_worker.model.model import ForwardBatch


class ScheduledSpan(NamedTuple):
    """The next `num_tokens` uncomputed tokens of a running sequence, to be run in this step."""

    sequence: Sequence
    num_tokens: int


class Batch(NamedTuple):
    """One step: what to compute, in the order of its plans."""

    spans: tuple[ScheduledSpan, ...]
    plans: tuple[AttentionPlan, ...]
    """One for each window that layers of the model have."""
    forward: ForwardBatch
    num_logit_rows: tuple[int, ...]
    """Rows of logits of each span; they belong to its last tokens."""

    def owners(self) -> list[Hashable]:
        """The engine's key of the request that each row of logits belongs to."""
        return [
            sequence.key
            for (sequence, _), count in zip(self.spans, self.num_logit_rows, strict=True)
            for _ in range(count)
        ]


def build_batch(
    scheduled: SequenceOf[ScheduledSpan],
    planner: AttentionPlanner,
    *,
    device: torch.device | str = "cpu",
) -> Batch:
    """Plan the step and gather its tokens, without padding.

    Each sequence gets a row of logits for every token from its `first_logit_position` on, in batch order.
    """
    plans = planner.plan(
        [
            SequenceSpan(
                sequence.running_handle.block_table,
                sequence.num_computed_tokens,
                num_tokens,
                is_answer=not sequence.is_prefilling,
            )
            for sequence, num_tokens in scheduled
        ]
    )
    spans = tuple(scheduled[i] for i in plans[0].order)
    token_ids: list[int] = []
    positions: list[int] = []
    prompt_lengths: list[int] = []
    logit_rows: list[int] = []
    num_logit_rows: list[int] = []
    for sequence, num_tokens in spans:
        start = sequence.num_computed_tokens
        token_ids += sequence.token_ids[start : start + num_tokens]
        positions += range(start, start + num_tokens)
        prompt_lengths += [sequence.num_prompt_tokens] * num_tokens
        num_rows = min(num_tokens, max(0, start + num_tokens - sequence.first_logit_position))
        logit_rows += range(len(token_ids) - num_rows, len(token_ids))
        num_logit_rows.append(num_rows)
    columns = (token_ids, positions, prompt_lengths, logit_rows)
    forward = ForwardBatch(*(torch.tensor(column, dtype=torch.int64, device=device) for column in columns))
    return Batch(spans, plans, forward, tuple(num_logit_rows))
