"""Answers under a constraint through the engine: cached, chunked, preempted, forked, sampled, stopped."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from support.hand_engine import GREEDY, HandEngine, stream
from support.tiny_loaded_model import EOS_ID, byte_tokenizer, constraint_compiler
from support.tiny_model import tiny_decoder

from prefixcache_worker.constraint.constraint import Constraint
from prefixcache_worker.engine.request import FinishReason, SamplingParams
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


def answer(hand: HandEngine, max_tokens: int = 200, **options: Any) -> tuple[str, FinishReason | None]:
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
