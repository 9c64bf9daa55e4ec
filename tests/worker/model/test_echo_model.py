from __future__ import annotations

import random

import pytest
import torch
from support.dense_attention import DenseCache, dense_forward, dense_greedy

from prefixcache_worker.model.echo_model import EchoModel
from prefixcache_worker.model.model import ForwardBatch

EOS = 2


def echo_model(**changes) -> EchoModel:
    return EchoModel(**({"vocabulary_size": 1000, "eos_token_id": EOS} | changes))


def prompt(num_tokens: int, vocabulary_size: int = 1000) -> list[int]:
    return random.Random(num_tokens).choices(range(vocabulary_size), k=num_tokens)


@pytest.mark.parametrize("num_tokens", [1, 2, 15, 16, 17, 200])
def test_output_is_the_prompt_then_end_of_text(num_tokens):
    token_ids = prompt(num_tokens)
    assert dense_greedy(echo_model(), token_ids, num_tokens + 2) == [*token_ids, EOS, EOS]


@pytest.mark.parametrize("vocabulary_size", [3, 4, 1024, 1025, 49_152])
def test_every_vocabulary_size_has_enough_bits(vocabulary_size):
    model = echo_model(vocabulary_size=vocabulary_size)
    token_ids = [0, vocabulary_size - 1, *prompt(20, vocabulary_size)]
    assert dense_greedy(model, token_ids, len(token_ids)) == token_ids


def test_attention_is_sharp_at_every_distance_of_the_whole_context():
    """Attention weight beside the wanted position stays under 1e-6, for every pair of 4,096 positions."""
    model, num_tokens = echo_model(), 4096
    seen: list[torch.Tensor] = []

    class KeepKeys:
        def attend(self, layer, query, key, value):
            seen.extend((query[:, 0], key[:, 0]))
            return value

    batch = ForwardBatch(
        token_ids=torch.zeros(num_tokens, dtype=torch.int64),
        positions=torch.arange(num_tokens),
        prompt_lengths=torch.ones(num_tokens, dtype=torch.int64),  # so the token at p asks for position p
        logit_rows=torch.tensor([num_tokens - 1]),
    )
    model.forward(batch, KeepKeys())
    query, key = seen
    weights = (query @ key.T / model.attention_shape.head_dim**0.5).softmax(dim=1)
    assert (weights.sum(dim=1) - weights.diagonal()).max() < 1e-6


def test_echo_at_the_end_of_a_full_context():
    model, token_ids = echo_model(), prompt(4000)
    cache = DenseCache(model.attention_shape)
    dense_forward(model, [cache], [token_ids], [2048])
    logits = dense_forward(model, [cache], [[7]], [2048])  # position 4000 asks for position 1953
    assert int(logits.argmax()) == token_ids[4000 - 2048 + 1]


def test_a_wrong_row_in_the_cache_gives_a_wrong_token():
    model, token_ids = echo_model(), prompt(32)
    cache = DenseCache(model.attention_shape)
    first = dense_forward(model, [cache], [token_ids], [32])[-1].argmax()
    assert int(first) == token_ids[0]
    rows = torch.arange(32)
    rows[1] = 5
    cache.values[0] = cache.values[0][rows]  # what a block table that names another block would do
    second = dense_forward(model, [cache], [[token_ids[0]]], [32]).argmax()
    assert int(second) == token_ids[5] != token_ids[1]
