"""From logits to the next token of each choice."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
import torch

from prefixcache_worker.engine.logit_adjustments import adjust_logits
from prefixcache_worker.engine.sampling_state import SamplingState
from prefixcache_worker.engine.truncation import truncate

RUN_LENGTH = 256
"""Tokens whose probabilities are summed first when one is drawn: fewer sums, fewer tokens in the last one."""
ALMOST_ONE = 1 - 2.0**-53


def sample(
    logits: torch.Tensor,  # [num_rows, vocabulary_size] float32
    choices: SequenceOf[SamplingState],  # one for each row
) -> list[int]:
    """The next token of each choice. Changes neither the logits nor the choices.

    Logits are adjusted (penalties, biases, bans: `adjust_logits`), divided by the temperature, made
    probabilities, truncated (top_k, min_p, top_p: `truncate`), and drawn from. At a temperature of 0 the
    first of the likeliest adjusted logits is taken instead. No row depends on another, and a token only on
    its row and its choice.

    Cost: one argmax for greedy rows, one softmax for the others, a sort for those that are truncated.
    """
    logits = adjust_logits(logits, choices)
    greedy = [row for row, choice in enumerate(choices) if choice.params.is_greedy]
    drawn = [row for row, choice in enumerate(choices) if not choice.params.is_greedy]
    token_ids = np.empty(len(choices), dtype=np.int64)
    if greedy:
        token_ids[greedy] = _likeliest(take_rows(logits, greedy))
    if drawn:
        token_ids[drawn] = _draw(take_rows(logits, drawn).cpu(), [choices[row] for row in drawn])
    return [int(token_id) for token_id in token_ids]


def take_rows(
    tensor: torch.Tensor,  # [num_rows, ...]
    rows: list[int],
) -> torch.Tensor:  # [len(rows), ...]
    """The rows in this order; the tensor itself, not a copy, when these are all of its rows in order."""
    return tensor if rows == list(range(len(tensor))) else tensor[rows]


def _likeliest(
    logits: torch.Tensor,  # [num_rows, vocabulary_size] float32
) -> np.ndarray:  # [num_rows] int64
    """The first of the likeliest of each row. On a CPU by NumPy, which takes a tenth of torch's time."""
    return logits.numpy().argmax(1) if logits.is_cpu else logits.argmax(1).cpu().numpy()


def _draw(
    logits: torch.Tensor,  # [num_rows, vocabulary_size] float32, on the CPU
    choices: list[SamplingState],
) -> np.ndarray:  # [num_rows] int64
    num_rows, vocabulary_size = logits.shape
    temperatures = torch.tensor([[choice.params.temperature] for choice in choices], dtype=torch.float32)
    # Whole runs: what is added has no probability.
    scaled = torch.empty(num_rows, -(-vocabulary_size // RUN_LENGTH) * RUN_LENGTH)
    torch.div(logits, temperatures, out=scaled[:, :vocabulary_size])
    scaled[:, vocabulary_size:] = -torch.inf
    probabilities = scaled.softmax(1).numpy()
    for row, choice in enumerate(choices):
        if choice.params.truncates:
            truncate(probabilities[row, :vocabulary_size], choice.params)
    return _indices_at(probabilities, np.array([choice.uniform for choice in choices]))


def _indices_at(
    weights: np.ndarray,  # [num_rows, num_runs * RUN_LENGTH] float32
    fractions: np.ndarray,  # [num_rows] float64, in [0, 1)
) -> np.ndarray:  # [num_rows] int64
    """Where the running sum of a row passes so large a fraction of it: first the run, then the place in it.

    Never a place without weight, because a sum does not pass anything there.
    """
    runs = weights.reshape(len(weights), -1, RUN_LENGTH)
    run, within = _place_at(runs.sum(2), fractions)
    place, _ = _place_at(np.take_along_axis(runs, run[:, None, None], 1)[:, 0], within)
    indices: np.ndarray = run * RUN_LENGTH + place
    return indices


def _place_at(
    weights: np.ndarray,  # [num_rows, n] float32
    fractions: np.ndarray,  # [num_rows] float64, in [0, 1)
) -> tuple[np.ndarray, np.ndarray]:  # [num_rows] int64, [num_rows] float64 in [0, 1)
    """Where the running sum passes so large a fraction of the whole, and how far into that place's weight."""
    up_to = weights.cumsum(1, dtype=np.float64)
    target = fractions * up_to[:, -1]
    place = (up_to <= target[:, None]).sum(1)
    at = place[:, None]
    weight = np.take_along_axis(weights, at, 1)[:, 0].astype(np.float64)
    passed = np.take_along_axis(up_to, at, 1)[:, 0] - target  # how far the sum is beyond it
    return place, np.clip(1 - passed / weight, 0, ALMOST_ONE)
