"""Sampling against a float64 oracle, its seeds, and the edges of every parameter."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from support.sampling_oracle import adjusted_logits, chi_square, distribution

from prefixcache_worker.engine.request import SamplingParams
from prefixcache_worker.engine.sampler import RUN_LENGTH, sample
from prefixcache_worker.engine.sampling_state import SamplingState
from prefixcache_worker.engine.truncation import truncate


def choice(*, index: int = 0, prompt: tuple[int, ...] = (), seed: int | None = 0, **params) -> SamplingState:
    return SamplingState(SamplingParams(seed=seed, **params), index=index, prompt_token_ids=prompt)


def draw(logits: torch.Tensor, times: int, **params) -> list[int]:
    """Tokens drawn one after the other from the same logits, without their adjustments adding up."""
    state = choice(**params)
    tokens = []
    for _ in range(times):
        tokens += sample(logits[None], [state])
        state.append(tokens[-1])
    return tokens


LOGITS = st.lists(st.integers(-20, 20).map(lambda n: n / 4), min_size=2, max_size=12)


@st.composite
def sampling_params(draw, num_tokens: int):
    tokens = st.integers(0, num_tokens - 1)
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.25, 0.7, 1.0, 1.5, 8.0])),
        top_p=draw(st.sampled_from([1.0, 0.95, 0.6, 0.3, 1e-6])),
        top_k=draw(st.sampled_from([0, 1, 2, 3, 7])),
        min_p=draw(st.sampled_from([0.0, 0.02, 0.3, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.7, 5.0])),
        presence_penalty=draw(st.sampled_from([0.0, 0.8, -2.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.4, -1.5])),
        logit_bias=tuple(
            draw(st.dictionaries(tokens, st.sampled_from([-100.0, -1.5, 3.0]), max_size=3)).items()
        ),
        seed=draw(st.integers(0, 2**64 - 1)),
    )


@given(st.data(), LOGITS)
def test_every_combination_draws_where_the_oracle_does(data, logits):
    """The token whose stretch of the summed probabilities the random number lies in."""
    params = data.draw(sampling_params(len(logits)))
    tokens = st.lists(st.integers(0, len(logits) - 1), max_size=6)
    prompt, output = data.draw(tokens), data.draw(tokens)
    banned = data.draw(st.sets(st.integers(0, len(logits) - 1), max_size=len(logits) - 1))
    state = SamplingState(
        params, prompt_token_ids=prompt, ending_ids=banned, min_tokens=len(output) + 1 if banned else 0
    )
    for token in output:
        state.append(token)
    wanted = adjusted_logits(logits, params, prompt=prompt, output=output, banned=banned)

    [token] = sample(torch.tensor([logits]), [state])

    if params.temperature == 0:
        assert wanted[token] == pytest.approx(max(wanted), abs=1e-5)
    else:
        probabilities = distribution(wanted, params)
        for doubt in (1 - 1e-5, 1 + 1e-5):  # whether a token is in the set must not hang on a last bit
            near = SamplingParams(
                temperature=params.temperature,
                top_p=min(1.0, params.top_p * doubt) if params.top_p < 1 else 1.0,
                top_k=params.top_k,
                min_p=params.min_p * doubt if params.min_p < 1 else 1.0,
            )
            assume(
                np.flatnonzero(distribution(wanted, near)).tolist() == np.flatnonzero(probabilities).tolist()
            )
        assert probabilities[token] > 0
        up_to = math.fsum(probabilities[: token + 1])
        assert up_to - probabilities[token] - 1e-5 <= state.uniform <= up_to + 1e-5


COMBINATIONS = [
    dict(zip(("temperature", "top_p", "top_k", "min_p"), values, strict=True))
    for values in itertools.product((0.6, 1.7), (1.0, 0.8), (0, 4), (0.0, 0.15))
]


@pytest.mark.parametrize("params", COMBINATIONS, ids=str)
def test_counts_follow_the_distribution(params):
    logits = torch.tensor([1.0, -0.5, 2.0, 1.5, -3.0, 0.25, 1.75, 0.0])
    probabilities = distribution(logits.tolist(), SamplingParams(**params))
    counts = np.bincount(draw(logits, 2000, seed=3, **params), minlength=len(logits)).tolist()
    # 24.32 is p = 0.001 at the seven degrees of freedom of eight tokens; with fewer it is less likely still.
    assert chi_square(counts, probabilities) < 24.32


def test_counts_follow_the_distribution_over_many_runs_of_tokens():
    """The two steps of a draw, first a run and then a token in it, with a rest behind the last whole run."""
    num_tokens = 3 * RUN_LENGTH + 17
    logits = torch.randn(num_tokens, generator=torch.Generator().manual_seed(1)) * 3
    likely = logits.softmax(0).double()
    tokens = draw(logits, 4000, seed=9)
    groups = np.arange(num_tokens) % 20
    counts = np.bincount(groups[tokens], minlength=20).tolist()
    assert chi_square(counts, np.bincount(groups, weights=likely.numpy()).tolist()) < 43.82  # p = 0.001 at 19


@pytest.mark.parametrize("spread", [0.5, 4.0])
@pytest.mark.parametrize(
    "params",
    [
        {"top_p": 0.9},
        {"top_p": 0.5, "top_k": 300},
        {"top_p": 0.7, "min_p": 0.01},
        {"top_k": 50, "min_p": 0.1},
    ],
    ids=str,
)
def test_a_wide_vocabulary_is_cut_off_where_the_oracle_does(params, spread):
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(4)) * spread
    probabilities = logits.softmax(0).numpy()
    truncate(probabilities, SamplingParams(**params))
    expected = distribution(logits.tolist(), SamplingParams(**params))
    assert np.flatnonzero(probabilities).tolist() == np.flatnonzero(expected).tolist()


def test_greedy_takes_the_first_of_the_likeliest():
    rows = [choice(temperature=0), choice(temperature=0)]
    assert sample(torch.tensor([[0.0, 2.0, 2.0], [3.0, 1.0, 2.0]]), rows) == [1, 0]


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-320])
def test_b72_almost_zero_temperature_is_greedy(temperature):
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 50
    assert draw(logits, 20, temperature=temperature) == [int(logits.argmax())] * 20
    tied = torch.tensor([20.0, 20.000002, 20.000002])
    assert draw(tied, 20, temperature=temperature) == [1] * 20


@pytest.mark.parametrize("temperature", [1e-5, 100.0])
def test_the_bounds_of_temperature_give_numbers(temperature):
    logits = torch.tensor([-1e4, 1e4, 0.0, -math.inf])
    assert set(draw(logits, 50, temperature=temperature)) == {1}


@pytest.mark.parametrize("params", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0, "top_p": 1e-9}], ids=str)
def test_the_narrowest_truncation_is_greedy_even_among_equals(params):
    logits = torch.tensor([0.0, 1.0, 1.0, 1.0])
    assert draw(logits, 20, **params) == [1] * 20


def test_top_k_keeps_so_many_of_equals():
    assert set(draw(torch.zeros(600), 300, top_k=3)) == {0, 1, 2}


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert set(draw(logits, 300, top_p=0.65)) == {0, 1}
    assert set(draw(logits, 300, top_p=0.75)) == {0, 1, 2}


def test_min_p_keeps_what_is_not_much_less_likely():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert set(draw(logits, 300, min_p=0.49)) == {0, 1, 2}
    assert set(draw(logits, 300, min_p=0.51)) == {0, 1}


def test_top_p_counts_of_what_the_others_left():
    """0.4 of 0.7 is more than half, though 0.4 of all is not."""
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert set(draw(logits, 200, top_p=0.5)) == {0, 1}
    assert set(draw(logits, 200, top_p=0.5, top_k=2)) == {0}


def test_masked_logits_are_never_drawn():
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0])
    assert set(draw(logits, 100)) == {1, 3}


def test_b114_first_tokens_over_seeds_follow_the_probabilities():
    probabilities = [0.5, 0.25, 0.15, 0.1]
    counts = [0] * 4
    for seed in range(1000):
        counts[draw(torch.tensor(probabilities).log(), 1, seed=seed)[0]] += 1
    assert chi_square(counts, probabilities) < 16.27  # p = 0.001 at three degrees of freedom


def test_b114_choices_of_one_seed_differ_and_repeat():
    logits = torch.zeros(50)
    runs = [tuple(draw(logits, 30, seed=1, index=i, temperature=1.5)) for i in range(4)]
    assert len(set(runs)) == 4
    assert runs == [tuple(draw(logits, 30, seed=1, index=i, temperature=1.5)) for i in range(4)]


def test_without_a_seed_answers_differ():
    logits = torch.zeros(1000)
    assert draw(logits, 5, seed=None) != draw(logits, 5, seed=None)


MIXED = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.4},
    {},
    {"temperature": 0.8, "top_p": 0.9},
    {"top_k": 40},
    {"min_p": 0.05, "presence_penalty": 1.0},
    {"logit_bias": ((3, 5.0), (700, -5.0)), "frequency_penalty": -0.5},
    {"temperature": 1.3, "top_k": 500, "top_p": 0.95, "min_p": 0.001, "repetition_penalty": 1.1},
]


def test_a_row_does_not_depend_on_the_others():
    """Alone, in any order, twice in a batch: the same token, whatever the others ask for."""
    num_rows = len(MIXED)
    logits = torch.randn(num_rows, 1000, generator=torch.Generator().manual_seed(2)) * 2
    states = [choice(seed=5, index=i, prompt=(1, 2, 3 + i), **params) for i, params in enumerate(MIXED)]
    for step in range(20):
        alone = [sample(logits[i : i + 1], [states[i]])[0] for i in range(num_rows)]
        order = np.random.default_rng(step).integers(0, num_rows, 2 * num_rows).tolist()
        assert sample(logits, states) == alone
        assert sample(logits[order], [states[i] for i in order]) == [alone[i] for i in order]
        for state, token in zip(states, alone, strict=True):
            state.append(token)


def test_the_logits_stay_as_they_are():
    logits = torch.randn(len(MIXED), 1000, generator=torch.Generator().manual_seed(2))
    before = logits.clone()
    sample(logits, [choice(prompt=(1, 2), **({"logit_bias": ((1, 1.0),)} | params)) for params in MIXED])
    assert torch.equal(logits, before)
