"""Random numbers by counter."""

import numpy as np
from support.sampling_oracle import chi_square

from prefixcache_worker.engine.random_numbers import choice_key, uniform


def test_numbers_fill_the_unit_interval_evenly():
    numbers = np.array([uniform(choice_key(7, 0), position) for position in range(10_000)])
    assert 0 <= numbers.min() < numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=50, range=(0, 1))
    assert chi_square(counts.tolist(), [1 / 50] * 50) < 85.35  # p = 0.001 at 49 degrees of freedom


def test_neighbours_are_not_correlated():
    by_position = np.array([[uniform(choice_key(s, 0), p) for p in range(40)] for s in range(40)])
    by_choice = np.array([[uniform(choice_key(s, i), 0) for i in range(40)] for s in range(40)])
    for numbers in (by_position, by_choice, by_position.T):
        assert abs(np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]) < 0.09  # 3.5 sigma


def test_a_seed_names_its_numbers_and_none_does_not():
    assert choice_key(1, 2) == choice_key(1, 2)
    keys = [choice_key(seed, index) for seed in (0, 1, 12, 2**64 - 1) for index in (0, 1, 12)]
    assert len(set(keys)) == len(keys)
    assert choice_key(None, 0) != choice_key(None, 0)
