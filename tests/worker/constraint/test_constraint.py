"""What a rule allows, whatever is chosen of it."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.tiny_loaded_model import EOS_ID, byte_tokenizer, constraint_compiler

from prefixcache_worker.constraint.constraint import ConstraintState
from prefixcache_worker.errors import InvalidRequestError

VOCABULARY_SIZE = 300
COMPILER = constraint_compiler(VOCABULARY_SIZE)
TOKEN_BYTES = byte_tokenizer().token_bytes
MAX_STEPS = 2000


def start(kind: str, text: str, **options: Any) -> ConstraintState:
    return COMPILER.compile(kind, text, field_name="constraint").start(**options)


def allowed(state: ConstraintState) -> list[int]:
    bits = np.unpackbits(state.allowed_bits.view(np.uint8), bitorder="little")
    ids = np.flatnonzero(bits).tolist()
    assert all(token_id < VOCABULARY_SIZE for token_id in ids)
    return ids


def take(state: ConstraintState, text: str) -> None:
    for token_id in byte_tokenizer().encode(text, add_special=False):
        assert token_id in allowed(state), (text, token_id)
        state.accept(token_id)


def walk(state: ConstraintState, seed: int) -> str:
    """A text that the rule allows, chosen at random, to an end that it allows."""
    choice, text = random.Random(seed), b""
    for _ in range(MAX_STEPS):
        assert not state.error
        if state.is_complete:
            break
        ids = allowed(state)
        token_id = EOS_ID if EOS_ID in ids and choice.random() < 0.3 else choice.choice(ids)
        if token_id == EOS_ID:
            break
        text += TOKEN_BYTES(token_id)
        state.accept(token_id)
    else:
        raise AssertionError(f"no end after {text!r}")
    return text.decode()  # strictly: no half characters


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Small schemas of all the kinds that tools use, whose texts are bounded."""
    numbers = st.integers(-1000, 1000)
    scalars = st.one_of(
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 5)),
        st.builds(
            lambda a, b: {"type": "integer", "minimum": min(a, b), "maximum": max(a, b)}, numbers, numbers
        ),
        st.builds(
            lambda p: {"type": "string", "pattern": p}, st.sampled_from(["^[a-c]{2}$", "^x?y$", "^(ab|c)$"])
        ),
        st.builds(
            lambda values: {"enum": values}, st.lists(st.text(max_size=4) | numbers, min_size=1, max_size=4)
        ),
        st.builds(lambda value: {"const": value}, st.recursive(numbers, st.lists, max_leaves=3)),
    )

    def larger(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        names = st.text(min_size=1, max_size=5)
        return st.one_of(
            st.builds(lambda i, n: {"type": "array", "items": i, "maxItems": n}, inner, st.integers(0, 3)),
            st.builds(
                lambda of, needed: {
                    "type": "object",
                    "properties": of,
                    "required": [name for name, is_needed in zip(of, needed, strict=False) if is_needed],
                    "additionalProperties": False,
                },
                st.dictionaries(names, inner, max_size=3),
                st.lists(st.booleans(), min_size=3, max_size=3),
            ),
            st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
        )

    return st.recursive(scalars, larger, max_leaves=5)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schema=schemas(), seed=st.integers(0, 2**32))
def test_whatever_is_chosen_of_a_schema_it_holds_for(schema: dict[str, Any], seed: int):
    text = walk(start("json_schema", json.dumps(schema)), seed)
    jsonschema.validate(json.loads(text), schema)


def regexes() -> st.SearchStrategy[str]:
    atoms = st.sampled_from(["a", "[b-d]", "é", "[0-9]", r"\.", "/", " ", "x{2,4}", '"', r"\n"])
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
            inner.map(lambda part: f"({part})?"),
            inner.map(lambda part: f"({part}){{1,3}}"),
        ),
        max_leaves=6,
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(regex=regexes(), seed=st.integers(0, 2**32))
def test_whatever_is_chosen_of_an_expression_matches_it(regex: str, seed: int):
    text = walk(start("regex", regex), seed)
    assert re.fullmatch(regex, text), text


def test_the_end_of_text_token_is_allowed_exactly_where_the_text_may_end():
    state = start("regex", "a|abc")
    assert EOS_ID not in allowed(state)
    take(state, "a")
    assert EOS_ID in allowed(state)
    state.accept(EOS_ID)
    assert not state.error
    take(state, "b")
    assert EOS_ID not in allowed(state)
    assert not state.is_complete
    take(state, "c")
    assert allowed(state) == [EOS_ID]
    assert state.is_complete


def test_whoever_ignores_the_end_of_text_is_never_offered_it():
    state = start("regex", "a|abc", ignore_eos=True)
    take(state, "a")
    assert EOS_ID not in allowed(state)
    take(state, "bc")
    assert (allowed(state), state.is_complete) == ([], True)


def test_states_of_one_rule_do_not_meet():
    constraint = COMPILER.compile("regex", "ab|cd", field_name="constraint")
    first, second = constraint.start(), constraint.start()
    take(first, "ab")
    take(second, "cd")
    take(constraint.start(), "cd")
    assert first.is_complete
    assert second.is_complete


def test_a_text_without_alternatives_may_come_in_any_tokens():
    tokenizer = byte_tokenizer(add_bos=True)  # whose own way to write a text must not matter
    state = start("json_schema", '{"const": "abc"}')
    for character in '"abc"':
        assert allowed(state) == tokenizer.encode(character, add_special=False)
        take(state, character)
    assert state.is_complete


def test_white_space_between_the_parts_of_a_json_text_is_bounded():
    state = start("json_schema", '{"type": "array", "items": {"type": "null"}}')
    take(state, "[" + "\n" * 20)
    assert not set(allowed(state)) & set(byte_tokenizer().encode(" \n\t", add_special=False))
    take(state, "null ]")
    assert state.is_complete


def test_a_grammar_may_name_special_tokens():
    state = start("grammar", 'start: <|turn|> "a"')
    assert allowed(state) == [3]
    state.accept(3)
    take(state, "a")
    assert state.is_complete


def test_a_rule_that_grows_too_large_says_so():
    names = [f"a{i}" for i in range(400)]
    state = start("json_schema", json.dumps({"type": "object", "properties": dict.fromkeys(names, True)}))
    take(state, "{")
    assert "1607 items" in state.error
    assert "\n" not in state.error
    assert not state.is_complete


@pytest.mark.parametrize("eos_token_ids", [(), (2, 3)], ids=str)
def test_a_model_may_have_any_number_of_end_tokens(eos_token_ids: tuple[int, ...]):
    compiler = type(COMPILER)(byte_tokenizer(), vocabulary_size=260, eos_token_ids=eos_token_ids)
    state = compiler.compile("regex", "a?", field_name="constraint").start()
    assert allowed(state) == [*eos_token_ids, *byte_tokenizer().encode("a", add_special=False)]


def test_an_end_token_may_be_one_of_text():
    [full_stop] = byte_tokenizer().encode(".", add_special=False)
    compiler = type(COMPILER)(byte_tokenizer(), vocabulary_size=260, eos_token_ids=(full_stop,))
    state = compiler.compile("regex", "a[.!]", field_name="constraint").start()
    take(state, "a")
    assert allowed(state) == byte_tokenizer().encode("!", add_special=False)
    with pytest.raises(InvalidRequestError, match="no token of the model"):
        compiler.compile("regex", r"\.", field_name="constraint")
