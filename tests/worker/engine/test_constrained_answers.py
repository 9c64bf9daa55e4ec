"""Answers under a constraint through the engine: cached, chunked, preempted, forked, sampled, stopped."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
import torch
from support.delegating_model import DelegatingModel
from support.hand_engine import GREEDY, HandEngine, stream
from support.tiny_loaded_model import EOS_ID, byte_tokenizer, constraint_compiler
from support.tiny_model import tiny_decoder

from prefixcache_worker.constraint.constraint import Constraint
from prefixcache_worker.engine.request import FinishReason, SamplingParams
from prefixcache_worker.errors import InvalidRequestError
from prefixcache_worker.model.model import ForwardBatch, StepAttention
from prefixcache_worker.model.scripted_model import ScriptedModel

PROMPT = stream("a", 40)
DRAWN = SamplingParams(temperature=1.5, seed=3)
VOCABULARY_SIZE = 300
MODEL = tiny_decoder(vocabulary_size=VOCABULARY_SIZE)
COMPILER = constraint_compiler(VOCABULARY_SIZE)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["new", "old"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def schema(value: dict[str, Any]) -> Constraint:
    return COMPILER.compile("json_schema", json.dumps(value), field_name="constraint.json_schema")


def regex(text: str) -> Constraint:
    return COMPILER.compile("regex", text, field_name="constraint.regex")


def engine(model: Any = MODEL, **limits: Any) -> HandEngine:
    return HandEngine(
        model=model, token_bytes=byte_tokenizer().token_bytes, eos_token_ids=(EOS_ID,), **limits
    )


def scripted(text: str) -> ScriptedModel:
    """A model that wants to say a text, and then to end."""
    script = byte_tokenizer().encode(text, add_special=False)
    return ScriptedModel(script, vocabulary_size=VOCABULARY_SIZE, eos_token_id=EOS_ID)


def answer(hand: HandEngine, max_tokens: int = 500, **options: Any) -> tuple[str, FinishReason | None]:
    request_id = hand.add(PROMPT, max_tokens, **options)
    hand.run()
    return hand.text(request_id), hand.finish_reason(request_id)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_random_logits_become_json_that_the_schema_holds_for(sampling: SamplingParams):
    text, reason = answer(engine(), sampling=sampling, constraint=schema(PERSON))
    jsonschema.validate(json.loads(text), PERSON)
    assert reason is FinishReason.STOP


def test_an_answer_that_is_complete_ends_without_an_end_token():
    hand = engine(scripted("abcdef"))
    request_id = hand.add(PROMPT, 20, constraint=regex("abc"))
    hand.run()
    assert (hand.text(request_id), hand.finish_reason(request_id)) == ("abc", FinishReason.STOP)
    assert hand.completions[request_id].usage.completion_tokens == 3
    assert hand.deltas[request_id][-1].stop_reason is None


def test_the_end_token_is_allowed_exactly_where_the_text_may_end():
    assert answer(engine(scripted("a")), constraint=regex("a|abc")) == ("a", FinishReason.STOP)
    assert answer(engine(scripted("ab")), constraint=regex("a|abc")) == ("abc", FinishReason.STOP)
    # Whoever ignores the end token goes on as long as the rule has more.
    assert answer(engine(scripted("a")), constraint=regex("a|abc"), ignore_eos=True) == (
        "abc",
        FinishReason.STOP,
    )


def test_scheduling_changes_nothing_of_a_constrained_answer():
    options: dict[str, Any] = {"sampling": DRAWN, "constraint": schema(PERSON), "n": 3}
    alone = engine()
    expected_id = alone.add(PROMPT, 150, **options)
    alone.run()
    expected = [alone.tokens(expected_id, index) for index in range(3)]
    assert len({tuple(tokens) for tokens in expected}) == 3

    hand = engine(max_batch_tokens=16)
    first = hand.add(PROMPT, 150, **options)
    others = [hand.add(stream("b", 20), 60, sampling=DRAWN) for _ in range(2)]
    again = hand.add(PROMPT, 150, **options)  # from the cache
    for num_before in (5, 20):
        while len(hand.tokens(first)) < num_before:
            hand.step()
        hand.engine.preempt(first)
    hand.run()
    for request_id in (first, again):
        assert [hand.tokens(request_id, index) for index in range(3)] == expected
        for index in range(3):
            jsonschema.validate(json.loads(hand.text(request_id, index)), PERSON)
    assert hand.num_cached(again) > 0

    plain = engine()
    assert plain.generate(stream("b", 20), 60, sampling=DRAWN) == hand.tokens(others[0])


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0, logit_bias=tuple((i, -100.0) for i in range(4, 300))),
        SamplingParams(temperature=2, logit_bias=((EOS_ID, 100.0), (7, 100.0)), seed=1),
        SamplingParams(temperature=1e-4, repetition_penalty=0.1, frequency_penalty=-2, seed=1),
        SamplingParams(temperature=100, top_k=1, top_p=0.01, min_p=1, seed=1),
    ],
    ids=["everything unlikely", "forbidden tokens likely", "repetitions", "truncated"],
)
def test_nothing_brings_back_what_the_rule_forbids(sampling: SamplingParams):
    text, reason = answer(engine(), sampling=sampling, constraint=schema(PERSON))
    jsonschema.validate(json.loads(text), PERSON)
    assert reason is FinishReason.STOP


class Certain(DelegatingModel):
    """Allows one token, whatever comes, and gives all others minus infinity."""

    def forward(self, batch: ForwardBatch, attention: StepAttention) -> torch.Tensor:
        logits = super().forward(batch, attention)
        return torch.full_like(logits, -torch.inf).index_fill_(1, torch.tensor([7]), 0.0)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN, SamplingParams(temperature=1e-4, seed=1)], ids=str)
def test_a_model_that_allows_only_what_the_rule_forbids_still_follows_it(sampling: SamplingParams):
    text, _ = answer(engine(Certain(MODEL)), sampling=sampling, constraint=regex("[ab]{5}c"))
    assert re.fullmatch("[ab]{5}c", text)


def test_log_probabilities_are_the_models_own():
    hand = engine(scripted("xyz"))
    request_id = hand.add(PROMPT, 20, constraint=regex("abc"), logprobs=1)
    hand.run()
    wanted = byte_tokenizer().encode("xyz", add_special=False)
    for score, token_id in zip(hand.logprobs(request_id), wanted, strict=True):
        assert score.top_token_ids == (token_id,)
        assert score.logprob == pytest.approx(-40, abs=0.01)


def test_min_tokens_holds_as_long_as_the_rule_has_more():
    assert answer(engine(scripted("a")), constraint=regex("a|abc"), min_tokens=2) == (
        "abc",
        FinishReason.STOP,
    )
    assert answer(engine(scripted("a")), constraint=regex("a"), min_tokens=5) == ("a", FinishReason.STOP)
    [b] = byte_tokenizer().encode("b", add_special=False)
    text, reason = answer(engine(scripted("a")), constraint=regex("ab?"), min_tokens=5, stop_token_ids=(b,))
    assert (text, reason) == ("a", FinishReason.STOP)  # what may come is only what would end it: it ends


def test_stops_of_the_request_end_an_answer_wherever_it_is():
    hand = engine(scripted('{"a": 1}'))
    options: dict[str, Any] = {"constraint": schema({"type": "object"})}
    assert answer(hand, stop=('": ',), **options) == ('{"a', FinishReason.STOP)
    [colon] = byte_tokenizer().encode(":", add_special=False)
    assert answer(hand, stop_token_ids=(colon,), **options) == ('{"a"', FinishReason.STOP)
    assert answer(hand, **options) == ('{"a": 1}', FinishReason.STOP)


def test_max_tokens_may_cut_an_answer():
    hand = engine(scripted('{"a": 1}'))
    assert answer(hand, 4, constraint=schema({"type": "object"})) == ('{"a"', FinishReason.LENGTH)
    # Whatever is complete with its last token has not been cut.
    assert answer(hand, 8, constraint=schema({"type": "object"})) == ('{"a": 1}', FinishReason.STOP)


def test_an_answer_that_cannot_go_on_fails_alone():
    too_large = schema({"type": "object", "properties": dict.fromkeys([f"a{i}" for i in range(400)], True)})
    hand = engine()
    before = hand.add(PROMPT, 20, sampling=DRAWN)
    stuck = hand.add(PROMPT, 20, sampling=DRAWN, constraint=too_large, n=2)
    after = hand.add(PROMPT, 60, sampling=DRAWN, constraint=regex("[a-z]{30}"))
    hand.run()
    error = hand.failures.pop(stuck)
    assert isinstance(error, InvalidRequestError)
    assert error.field_name == "constraint.json_schema"
    assert "cannot be followed beyond token 1 of the answer: Parser Error: Current row has" in str(error)
    assert hand.completions.keys() == {before, after}
    assert re.fullmatch("[a-z]{30}", hand.text(after))
    assert hand.tokens(before) == engine().generate(PROMPT, 20, sampling=DRAWN)
