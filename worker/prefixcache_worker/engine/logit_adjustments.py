"""Penalties, biases, bans and constraints: what changes single logits before a token is chosen."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

import numpy as np
import torch

from prefixcache_worker.constraint.constraint import ConstraintState
from prefixcache_worker.engine.sampling_state import SamplingState

LEAST_LOGIT = -1e30
"""Far below what a model says, and still a number when it is divided by the least temperature."""


def adjust_logits(
    logits: torch.Tensor,  # [num_rows, vocabulary_size] float32
    choices: SequenceOf[SamplingState],
) -> torch.Tensor:  # [num_rows, vocabulary_size] float32
    """The logits after each choice's penalties, biases, bans and constraint, in this order; `logits` stay.

    With l the logit of a token and c how often the choice has generated it:

    - repetition penalty r, if the prompt or the choice has the token: l / r where l > 0, else l * r
      (Keskar et al. 2019, "CTRL", section 4.1);
    - frequency penalty f and presence penalty p: l - f * c - p * (c > 0), as OpenAI defines them;
    - bias b: l + b;
    - ban: minus infinity;
    - constraint: minus infinity for what it does not allow, and for what it allows at least LEAST_LOGIT, so
      that one of these tokens is chosen whatever came before.

    Cost: nothing when no choice asks for any; else a copy of the logits, and work on the tokens concerned.
    """
    penalised = {row: choice for row, choice in enumerate(choices) if choice.counts is not None}
    biased = {row: choice for row, choice in enumerate(choices) if len(choice.bias_ids)}
    banned = {row: choice.banned_ids for row, choice in enumerate(choices) if len(choice.banned_ids)}
    constrained = {row: choice.constraint for row, choice in enumerate(choices) if choice.constraint}
    if not (penalised or biased or banned or constrained):
        return logits
    logits = logits.clone()
    if penalised:
        _penalise(logits, penalised)
    if biased:
        places = _places(logits, {row: choice.bias_ids for row, choice in biased.items()})
        logits[places] += _joined(logits, [choice.biases for choice in biased.values()])
    if banned:
        logits[_places(logits, banned)] = -torch.inf
    if constrained:
        _constrain(logits, constrained)
    return logits


def _constrain(logits: torch.Tensor, constraint_by_row: dict[int, ConstraintState]) -> None:
    rows = list(constraint_by_row)
    bits = np.stack([constraint.allowed_bits for constraint in constraint_by_row.values()]).view(np.uint8)
    allowed = np.unpackbits(bits, axis=1, count=logits.shape[1], bitorder="little").view(np.bool_)
    is_allowed = torch.from_numpy(allowed).to(logits.device)  # [num_rows, vocabulary_size]
    logits[rows] = logits[rows].clamp(min=LEAST_LOGIT).masked_fill(~is_allowed, -torch.inf)


def _penalise(logits: torch.Tensor, choice_by_row: dict[int, SamplingState]) -> None:
    counts = {row: choice.counts for row, choice in choice_by_row.items() if choice.counts is not None}
    num_ids = [len(of_row.token_ids) for of_row in counts.values()]
    params = [choice.params for choice in choice_by_row.values()]
    penalties = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in params]
    repetition, frequency, presence = (
        _joined(logits, [np.repeat(np.array(column, dtype=np.float32), num_ids)])
        for column in zip(*penalties, strict=True)
    )
    num_generated = _joined(logits, [of_row.num_generated for of_row in counts.values()])
    places = _places(logits, {row: of_row.token_ids for row, of_row in counts.items()})
    values = logits[places]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[places] = values - frequency * num_generated - presence * (num_generated > 0)


def _places(logits: torch.Tensor, ids_by_row: dict[int, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows and columns of the tokens of every row, on the logits' device."""
    rows = np.repeat(np.array(list(ids_by_row)), [len(ids) for ids in ids_by_row.values()])
    return _joined(logits, [rows]), _joined(logits, ids_by_row.values())


def _joined(logits: torch.Tensor, arrays: Iterable[np.ndarray]) -> torch.Tensor:
    """The arrays, one after the other, on the logits' device."""
    return torch.from_numpy(np.concatenate(list(arrays))).to(logits.device)
