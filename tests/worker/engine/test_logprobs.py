"""Log-probabilities are the log-softmax of the raw logits, row by row."""

import pytest
import torch

from prefixcache_worker.engine import logprobs as module
from prefixcache_worker.engine.logprobs import token_logprobs

LOGITS = torch.randn(150, 700, generator=torch.Generator().manual_seed(0)) * 5
TOKENS = [(7 * row) % 700 for row in range(150)]


def test_the_token_and_the_likeliest_of_each_row():
    exact = LOGITS.double().log_softmax(1)
    for row, score in enumerate(token_logprobs(LOGITS, TOKENS, [row % 21 for row in range(150)])):
        assert score.logprob == pytest.approx(exact[row, TOKENS[row]].item(), abs=1e-5)
        top = exact[row].topk(row % 21)
        assert score.top_token_ids == tuple(top.indices.tolist())
        assert score.top_logprobs == pytest.approx(top.values.tolist(), abs=1e-5)


def test_a_row_does_not_depend_on_the_others(monkeypatch):
    together = token_logprobs(LOGITS, TOKENS, [5] * 150)
    assert [token_logprobs(LOGITS[i : i + 1], TOKENS[i : i + 1], [5])[0] for i in range(150)] == together
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 7)
    assert token_logprobs(LOGITS, TOKENS, [5] * 150) == together
    some = [5 if row % 3 else None for row in range(150)]
    expected = [score if row % 3 else None for row, score in enumerate(together)]
    assert token_logprobs(LOGITS, TOKENS, some) == expected


def test_more_likeliest_than_there_are_tokens_are_all_of_them():
    [score] = token_logprobs(torch.tensor([[1.0, 2.0]]), [0], [20])
    assert score.top_token_ids == (1, 0)
    assert score.top_logprobs[1] == score.logprob
