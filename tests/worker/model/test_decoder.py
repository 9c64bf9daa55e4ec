"""What holds for a decoder of any family: batches, chunks, wanted rows, half precision."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from support.dense_attention import DenseCache, dense_forward, dense_greedy, dense_logits
from support.tiny_checkpoint import (
    VOCABULARY_SIZE,
    save_tiny_checkpoint,
    tiny_transformers_model,
    transformers_logits,
)
from support.tiny_model import tiny_decoder
from transformers import AutoModelForCausalLM

from prefixcache_worker.model.loader import load_model
from prefixcache_worker.model.model import ForwardBatch

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-4


def prompt(num_tokens: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY_SIZE), k=num_tokens)


def test_half_precision_checkpoint_in_several_files_equals_transformers(tmp_path):
    folder = save_tiny_checkpoint(tmp_path, tiny_transformers_model().half(), max_shard_size="40KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    token_ids = prompt(30)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = transformers_logits(reference, token_ids)
    logits = dense_logits(load_model(str(folder)).model, token_ids)
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


def test_prefill_in_chunks_and_decode_equal_one_pass():
    model, token_ids = tiny_decoder(), prompt(50)
    cache = DenseCache(model.attention_shape)
    cuts = [0, 1, 17, 40, 47, 48, 49, 50]
    parts = [token_ids[start:end] for start, end in itertools.pairwise(cuts)]
    logits = torch.cat([dense_forward(model, [cache], [part], [50]) for part in parts])
    torch.testing.assert_close(logits, dense_logits(model, token_ids), atol=TOLERANCE, rtol=0)


def test_sequences_of_a_batch_do_not_see_each_other():
    model = tiny_decoder()
    prompts = [prompt(num_tokens, seed=num_tokens) for num_tokens in (1, 9, 30)]
    caches = [DenseCache(model.attention_shape) for _ in prompts]
    together = dense_forward(model, caches, prompts, [len(token_ids) for token_ids in prompts])
    alone = torch.cat([dense_logits(model, token_ids) for token_ids in prompts])
    torch.testing.assert_close(together, alone, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("rows", [[], [4], [1, 4], [4, 0]])
def test_only_the_wanted_rows_come_back(rows):
    model, token_ids = tiny_decoder(), prompt(5)

    class OwnValue:
        def attend(self, layer, query, key, value):
            return value.repeat_interleave(model.attention_shape.group_size, dim=1)

    def run(logit_rows):
        return model.forward(
            ForwardBatch(
                token_ids=torch.tensor(token_ids),
                positions=torch.arange(5),
                prompt_lengths=torch.full((5,), 5),
                logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
            ),
            OwnValue(),
        )

    logits = run(rows)
    assert logits.shape == (len(rows), model.vocabulary_size)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, run(list(range(5)))[rows], atol=TOLERANCE, rtol=0)


def test_tiny_decoder_is_the_same_every_time_and_sees_every_earlier_token():
    token_ids = prompt(40)
    logits = dense_logits(tiny_decoder(), token_ids)
    assert torch.equal(logits, dense_logits(tiny_decoder(), token_ids))
    assert not torch.allclose(logits, dense_logits(tiny_decoder(2), token_ids))
    for position in range(40):
        changed = [*token_ids[:position], (token_ids[position] + 1) % 300, *token_ids[position + 1 :]]
        difference = (dense_logits(tiny_decoder(), changed) - logits).abs().amax(dim=1)
        assert (difference[:position] < 1e-4).all()
        assert difference[-1] > 0.01


def test_greedy_output_of_the_tiny_decoder_does_not_repeat_itself():
    assert len(set(dense_greedy(tiny_decoder(), prompt(20), 20))) > 10
