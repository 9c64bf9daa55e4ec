"""Rotary positions (Su et al. 2021): how fast each pair of a head's elements turns, and the tables of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass(frozen=True, slots=True)
class Rope:
    """The turns of one kind of layer. A key's turn depends on its own position only, never on a length."""

    frequencies: tuple[float, ...]
    """Radians per position, one for each pair of elements: [head_dim / 2]. Each is a float32."""
    amplitude: float = 1.0
    """What rotated queries and keys are multiplied by: YaRN's attention factor."""


def plain_rope(theta: float, head_dim: int) -> Rope:
    """Frequencies from 1 downwards in a geometric row that would reach 1 / theta."""
    return _rope(_frequencies(theta, head_dim))


def linear_rope(theta: float, head_dim: int, *, factor: float) -> Rope:
    """Position interpolation (Chen et al. 2023): every frequency divided by `factor`."""
    return _rope(_frequencies(theta, head_dim) / factor)


def divided_rope(theta: float, head_dim: int, *, divisors: Sequence[float]) -> Rope:
    """Each frequency divided by its own number. Requires head_dim / 2 divisors."""
    return _rope(_frequencies(theta, head_dim) / torch.tensor(divisors, dtype=torch.float32))


def llama3_rope(
    theta: float,
    head_dim: int,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_context_length: int,
) -> Rope:
    """Llama 3.1's: pairs that turn often within the original context keep their frequency, rare ones do not.

    With n turns in the original context: n >= high_freq_factor keeps the frequency, n <= low_freq_factor
    divides it by `factor`, and between the two the frequencies are mixed in proportion.
    """
    frequencies = _frequencies(theta, head_dim)
    num_turns = original_context_length * frequencies / (2 * math.pi)
    kept = ((num_turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0, 1)
    return _rope((1 - kept) * frequencies / factor + kept * frequencies)


def yarn_rope(
    theta: float,
    head_dim: int,
    *,
    factor: float,
    original_context_length: int,
    amplitude: float | None = None,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    rounds_range: bool = True,
) -> Rope:
    """YaRN (Peng et al. 2023): the same thought, mixed evenly over the pairs instead of over the frequencies.

    The pair that makes `beta_fast` turns in the original context and those before it keep their frequency;
    the one that makes `beta_slow` and those behind it have it divided by `factor`. `rounds_range` widens the
    range between the two to whole pairs. `amplitude` None: the paper's 0.1 ln(factor) + 1.
    """

    def pair_with(num_turns: float) -> float:
        positions_per_radian = original_context_length / (num_turns * 2 * math.pi)
        return head_dim * math.log(positions_per_radian) / (2 * math.log(theta))

    first, last = pair_with(beta_fast), pair_with(beta_slow)
    if rounds_range:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first or 0.001  # of no width: a step
    divided = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / width).clamp(0, 1)
    frequencies = _frequencies(theta, head_dim)
    mixed = frequencies / factor * divided + frequencies * (1 - divided)
    return _rope(mixed, yarn_amplitude(factor) if amplitude is None else amplitude)


def yarn_amplitude(factor: float, weight: float = 1.0) -> float:
    """The paper's attention factor, its logarithm weighted: 1 where nothing is stretched."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


class Rotation(NamedTuple):
    """The turns of a batch's tokens."""

    cos: torch.Tensor  # [num_tokens, 1, head_dim / 2]
    sin: torch.Tensor  # [num_tokens, 1, head_dim / 2]


class RotaryTable:
    """Cosines and sines of every position, computed once, so that a position always has the same bits."""

    def __init__(self, rope: Rope, *, num_positions: int, device: torch.device) -> None:
        """O(num_positions * head_dim) time and memory, in float32."""
        frequencies = torch.tensor(rope.frequencies, dtype=torch.float32)
        positions = torch.arange(num_positions, dtype=torch.float32)
        angles = torch.outer(positions, frequencies).to(device)  # [num_positions, head_dim / 2]
        self._cos = angles.cos() * rope.amplitude
        self._sin = angles.sin() * rope.amplitude

    def at(
        self,
        positions: torch.Tensor,  # [num_tokens] int64, below num_positions
    ) -> Rotation:
        return Rotation(self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1))


def _frequencies(theta: float, head_dim: int) -> torch.Tensor:  # [head_dim / 2] float32
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / theta**exponents


def _rope(frequencies: torch.Tensor, amplitude: float = 1.0) -> Rope:
    return Rope(tuple(frequencies.tolist()), amplitude)
