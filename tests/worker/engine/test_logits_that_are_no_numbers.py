"""A request whose scores are no numbers fails alone, whatever its sampling is."""

import pytest
import torch
from support.delegating_model import DelegatingModel
from support.hand_engine import HandEngine, reference, reference_model, stream

from prefixcache_worker.engine.request import SamplingParams
from prefixcache_worker.errors import NotFiniteError
from prefixcache_worker.model.model import ForwardBatch, StepAttention

BAD_TOKEN = 999


class SpoiledModel(DelegatingModel):
    """Spoils the logits of every row whose token is BAD_TOKEN."""

    def __init__(self, value: float) -> None:
        super().__init__(reference_model())
        self._value = value

    def forward(self, batch: ForwardBatch, attention: StepAttention) -> torch.Tensor:
        logits = super().forward(batch, attention)
        logits[batch.token_ids[batch.logit_rows] == BAD_TOKEN, 7] = self._value
        return logits


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0),
        SamplingParams(temperature=1, seed=1),
        SamplingParams(temperature=1, seed=1, top_p=0.5, min_p=0.1, top_k=5),
    ],
    ids=["greedy", "plain", "truncated"],
)
def test_only_the_request_with_such_scores_fails(sampling, value):
    hand = HandEngine(model=SpoiledModel(value))
    good = hand.add(stream("a", 20), 5)
    bad = hand.add([*stream("b", 20), BAD_TOKEN], 5, sampling=sampling, n=2)
    waiting = hand.add(stream("c", 20), 5)
    hand.run()
    assert isinstance(hand.failures[bad], NotFiniteError)
    assert "no numbers" in str(hand.failures[bad])
    assert list(hand.failures) == [bad]
    assert not hand.tokens(bad)
    assert hand.tokens(good) == reference(stream("a", 20), 5)
    assert hand.tokens(waiting) == reference(stream("c", 20), 5)


def test_a_token_that_is_impossible_is_no_fault():
    hand = HandEngine(model=SpoiledModel(-torch.inf))
    request_id = hand.add([*stream("b", 20), BAD_TOKEN], 1)
    hand.run()
    assert not hand.failures
    assert len(hand.tokens(request_id)) == 1
