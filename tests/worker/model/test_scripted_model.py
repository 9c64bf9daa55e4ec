from __future__ import annotations

import pytest
from support.dense_attention import DenseCache, dense_forward, dense_greedy

from prefixcache_worker.model.scripted_model import ScriptedModel

EOS = 2


@pytest.mark.parametrize("prompt_length", [1, 2, 40])
@pytest.mark.parametrize("script", [[], [5], [5, 6, 7, 5, 999]])
def test_output_is_the_script_then_end_of_text(script, prompt_length):
    model = ScriptedModel(script, vocabulary_size=1000, eos_token_id=EOS)
    output = dense_greedy(model, [9] * prompt_length, len(script) + 3)
    assert output == [*script, EOS, EOS, EOS]


def test_each_sequence_of_a_batch_is_at_its_own_place_in_the_script():
    model = ScriptedModel([5, 6, 7], vocabulary_size=1000, eos_token_id=EOS)
    caches = [DenseCache(model.attention_shape) for _ in range(3)]
    logits = dense_forward(model, caches, [[9] * 4, [9] * 5, [9]], [4, 3, 1])
    last_rows = logits.argmax(dim=1)[[3, 8, 9]]
    assert last_rows.tolist() == [5, 7, 5]


def test_a_script_outside_the_vocabulary_is_a_bug():
    with pytest.raises(AssertionError):
        ScriptedModel([5, 1000], vocabulary_size=1000, eos_token_id=EOS)
