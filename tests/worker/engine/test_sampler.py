"""Sampling: greedy, nucleus, top-k, seeds, and the edges of temperature."""

import math

import pytest
import torch

from prefixcache_worker.engine import sampler
from prefixcache_worker.engine.request import SamplingParams
from prefixcache_worker.engine.sampler import SamplingRow, choice_generator, sample


def draw(
    logits: torch.Tensor, *, seed: int = 0, index: int = 0, times: int = 1, **params: float
) -> list[int]:
    row = SamplingRow(SamplingParams(**params), choice_generator(seed, index))
    return [sample(logits[None], [row])[0] for _ in range(times)]


def test_greedy_takes_the_first_of_the_likeliest():
    rows = [SamplingRow(SamplingParams(temperature=0), None)] * 2
    assert sample(torch.tensor([[0.0, 2.0, 2.0], [3.0, 1.0, 2.0]]), rows) == [1, 0]


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-320])
def test_almost_zero_temperature_is_greedy(temperature):
    torch.manual_seed(0)
    logits = torch.randn(1000) * 50
    assert draw(logits, temperature=temperature, times=20) == [int(logits.argmax())] * 20


def test_top_k_one_is_greedy():
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    assert draw(logits, top_k=1, times=20) == [int(logits.argmax())] * 20


def test_top_k_keeps_so_many():
    logits = torch.arange(100.0) / 100
    assert set(draw(logits, top_k=3, times=300)) == {97, 98, 99}


@pytest.mark.parametrize("num_likely", [2, 1024])
def test_top_p_keeps_the_smallest_set_that_reaches_it(monkeypatch, num_likely):
    """Both ways through the code: the likeliest tokens suffice, or the whole vocabulary is sorted."""
    monkeypatch.setattr(sampler, "NUM_LIKELY_TOKENS", num_likely)
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert set(draw(logits, top_p=0.65, times=300)) == {0, 1}
    assert set(draw(logits, top_p=0.75, times=300)) == {0, 1, 2}
    assert set(draw(logits, top_p=1e-9, times=50)) == {0}


def test_b114_first_tokens_over_seeds_follow_the_probabilities():
    probabilities = torch.tensor([0.5, 0.25, 0.15, 0.1])
    counts = [0] * 4
    for seed in range(1000):
        counts[draw(probabilities.log(), seed=seed)[0]] += 1
    chi_square = sum(
        (c - 1000 * p) ** 2 / (1000 * p) for c, p in zip(counts, probabilities.tolist(), strict=True)
    )
    assert chi_square < 16.27  # p = 0.001 at three degrees of freedom


def test_b114_choices_of_one_seed_differ_and_repeat():
    logits = torch.zeros(50)
    runs = [tuple(draw(logits, seed=1, index=i, times=30)) for i in range(4)]
    assert len(set(runs)) == 4
    assert runs == [tuple(draw(logits, seed=1, index=i, times=30)) for i in range(4)]


def test_without_a_seed_answers_differ():
    generators = [choice_generator(None, 0) for _ in range(2)]
    rows = [
        [sample(torch.zeros(1, 1000), [SamplingRow(SamplingParams(), g)])[0] for _ in range(5)]
        for g in generators
    ]
    assert rows[0] != rows[1]


def test_a_row_does_not_depend_on_the_others():
    torch.manual_seed(0)
    logits = torch.randn(3, 100)
    params = SamplingParams(temperature=0.8, top_p=0.9)
    together = sample(logits, [SamplingRow(params, choice_generator(5, i)) for i in range(3)])
    alone = [sample(logits[i : i + 1], [SamplingRow(params, choice_generator(5, i))])[0] for i in range(3)]
    assert together == alone


def test_masked_logits_are_never_drawn():
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0])
    assert set(draw(logits, times=100)) == {1, 3}
