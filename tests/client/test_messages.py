"""Requests: what Python values become on the wire."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache.v1 import inference_pb2 as pb
from prefixcache_client.messages import (
    GenerateOptions,
    chat_messages,
    detokenize_request,
    generate_request,
    tokenize_request,
)

RULES = ("json_schema", "regex", "grammar")
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "request_id": st.text(min_size=1),
    "max_tokens": st.integers(0, 2**32 - 1),
    "temperature": st.floats(width=32, allow_nan=False),
    "top_p": st.floats(width=32, allow_nan=False),
    "top_k": st.integers(-(2**31), 2**31 - 1),
    "min_p": st.floats(width=32, allow_nan=False),
    "repetition_penalty": st.floats(width=32, allow_nan=False),
    "presence_penalty": st.floats(width=32, allow_nan=False),
    "frequency_penalty": st.floats(width=32, allow_nan=False),
    "logit_bias": st.dictionaries(
        st.integers(0, 2**32 - 1), st.floats(width=32, allow_nan=False), min_size=1
    ),
    "seed": st.integers(0, 2**64 - 1),
    "min_tokens": st.integers(0, 2**32 - 1),
    "stop_token_ids": st.lists(st.integers(0, 2**32 - 1), min_size=1),
    "include_stop": st.booleans(),
    "logprobs": st.integers(0, 2**32 - 1),
    "prompt_logprobs": st.integers(0, 2**32 - 1),
    "ignore_eos": st.booleans(),
    "n": st.integers(0, 2**32 - 1),
    "priority": st.integers(-(2**31), 2**31 - 1),
    "public_tokens": st.integers(0, 2**32 - 1),
    "salt": st.text(min_size=1),
    "cache_priority": st.integers(0, 2**32 - 1),
    "cache_priority_seconds": st.floats(allow_nan=False),
    "prefix": st.text(min_size=1),
}
FIELD_OF_OPTION = {
    "cache_priority": (pb.CacheOptions, "priority"),
    "cache_priority_seconds": (pb.CacheOptions, "priority_seconds"),
    "prefix": (pb.GenerateRequest, "prefix_id"),
}
"""Options whose field has another name."""


def field_of(request: pb.GenerateRequest, name: str) -> tuple[bool, Any]:
    """Whether the field that carries an option is present, and its value."""
    kind, name = FIELD_OF_OPTION.get(name, (None, name))
    for message in (request, request.sampling, request.stop_conditions, request.cache):
        if kind is not None and not isinstance(message, kind):
            continue
        descriptor = message.DESCRIPTOR.fields_by_name.get(name)
        if descriptor is not None:
            value = getattr(message, name)
            present = message.HasField(name) if descriptor.has_presence else bool(value)
            return present, value
    raise KeyError(name)


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_a_field_is_present_exactly_when_its_option_is_given(options: GenerateOptions) -> None:
    request = generate_request("hi", **options)

    for name in VALUES:
        present, value = field_of(request, name)
        assert present == (name in options)
        if present:
            assert value == options[name]  # type: ignore[literal-required]


def test_every_option_is_documented_and_accepted() -> None:
    assert set(VALUES) | {"stop", "use_cache", "public_messages", *RULES} == set(
        GenerateOptions.__annotations__
    )


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_sent_as_the_constraint(name: str) -> None:
    assert generate_request("hi", **{name: "a"}).constraint == pb.Constraint(**{name: "a"})  # type: ignore[misc]
    assert not generate_request("hi").HasField("constraint")


def test_a_schema_may_be_a_value() -> None:
    request = generate_request("hi", json_schema={"type": "integer"})

    assert request.constraint.json_schema == '{"type": "integer"}'


@pytest.mark.parametrize("prompt", ["", "Once upon a time"])
def test_text_is_sent_as_text(prompt: str) -> None:
    request = generate_request(prompt)

    assert request.WhichOneof("prompt") == "text"
    assert request.text == prompt


@pytest.mark.parametrize("prompt", [[], [0], (5, 6, 7), range(3), array("I", [5, 6])])
def test_integers_are_sent_as_token_ids(prompt: Any) -> None:
    request = generate_request(prompt)

    assert request.WhichOneof("prompt") == "token_ids"
    assert list(request.token_ids.ids) == list(prompt)


def test_mappings_are_sent_as_chat() -> None:
    request = generate_request([{"role": "system", "content": "Be kind."}, {"role": "user", "content": ""}])

    assert request.WhichOneof("prompt") == "chat"
    assert [(turn.role, turn.content) for turn in request.chat.messages] == [
        ("system", "Be kind."),
        ("user", ""),
    ]


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ([1, -1], ValueError, "token ids must be integers from 0"),
        ([2**32], ValueError, "token ids must be integers from 0"),
        ([1, "two"], TypeError, "token ids must be integers from 0"),
        (b"hi", TypeError, "^a prompt is text, token ids or chat messages, not bytes$"),
        (bytearray(b"hi"), TypeError, "not bytearray$"),
        (memoryview(b"hi"), TypeError, "not memoryview$"),
        (None, TypeError, "^a prompt is text, token ids or chat messages, not NoneType$"),
        ({1, 2}, TypeError, "not set$"),
        ({"role": "user", "content": "a"}, TypeError, "not dict$"),
        ([{"role": "user"}], ValueError, "chat message 0 must be a mapping with exactly"),
        ([{"role": "user", "content": "a", "name": "b"}], ValueError, "chat message 0 must be a mapping"),
        ([{"role": "user", "content": "a"}, 5], ValueError, "chat message 1 must be a mapping"),
        ([{"role": "user", "content": 5}], TypeError, "content: "),
        ([{"role": "user", "content": None}], TypeError, "content: "),
    ],
)
def test_a_prompt_that_no_message_can_hold_is_refused_by_name(
    prompt: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        generate_request(prompt)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_tokens": -1}, ValueError, "max_tokens: "),
        ({"n": 2**32}, ValueError, "n: "),
        ({"seed": -1}, ValueError, "seed: "),
        ({"temperature": "hot"}, TypeError, "temperature: "),
        ({"logit_bias": {-1: 1.0}}, ValueError, "logit_bias: "),
        ({"logit_bias": {"x": 1.0}}, TypeError, "logit_bias: "),
        ({"logit_bias": {1: "x"}}, TypeError, "logit_bias: "),
        ({"stop_token_ids": [-1]}, ValueError, "stop_token_ids: "),
        ({"stop_token_ids": 5}, TypeError, "stop_token_ids: "),
        ({"logprobs": -1}, ValueError, "logprobs: "),
        ({"public_tokens": 1, "public_messages": 1}, ValueError, "exclude each other"),
        ({"regex": "a", "grammar": "start: A"}, ValueError, "exclude each other"),
        ({"json_schema": {"enum": [object()]}}, TypeError, "json_schema: "),
        ({"regex": 5}, TypeError, "regex: "),
        (
            {"temprature": 1.0},
            TypeError,
            "^there is no option 'temprature'; there are request_id, max_tokens, ",
        ),
    ],
)
def test_an_option_that_no_message_can_hold_is_refused_by_name(
    options: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        generate_request("hi", **options)


def test_an_option_that_is_none_counts_as_left_out() -> None:
    options: Any = dict.fromkeys(GenerateOptions.__annotations__)

    assert generate_request("hi", **options) == generate_request("hi")


@pytest.mark.parametrize(("stop", "sent"), [("END", ["END"]), (["a", "b"], ["a", "b"]), ((), [])])
def test_one_stop_text_or_several(stop: Any, sent: list[str]) -> None:
    assert list(generate_request("hi", stop=stop).stop_conditions.stop) == sent


@pytest.mark.parametrize(
    ("use_cache", "mode"),
    [(True, pb.CacheOptions.MODE_UNSPECIFIED), (False, pb.CacheOptions.MODE_OFF)],
)
def test_the_cache_is_used_unless_switched_off(use_cache: bool, mode: int) -> None:
    assert generate_request("hi", use_cache=use_cache).cache.mode == mode


def test_public_messages_take_the_place_of_public_tokens() -> None:
    request = generate_request([{"role": "user", "content": "a"}], public_messages=1)

    assert request.cache.WhichOneof("public_prefix") == "public_messages"
    assert request.cache.public_messages == 1


def test_a_text_is_one_user_turn_and_system_goes_in_front() -> None:
    assert chat_messages("Hi", system="Be kind.") == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
    ]
    assert chat_messages([{"role": "user", "content": "Hi"}]) == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("messages", "error", "words"),
    [
        ([], ValueError, "^the chat has no messages: it needs at least one$"),
        ([("user", "hi")], ValueError, "^chat message 0 must be a mapping with exactly the keys"),
        ([5, 6], ValueError, "^chat message 0 must be a mapping"),
        (None, TypeError, "^a chat is text or a list of messages, not NoneType$"),
        (b"hi", TypeError, "^a chat is text or a list of messages, not bytes$"),
        ({"role": "user", "content": "hi"}, TypeError, "^a chat is text or a list of messages, not dict$"),
    ],
)
def test_what_is_no_chat_is_refused_by_name(messages: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        chat_messages(messages)


HALF_PAIR = "a\udcff"
"""What Python makes of a byte that is no UTF-8."""


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: generate_request(HALF_PAIR), "text"),
        (lambda: generate_request([{"role": "user", "content": HALF_PAIR}]), "content"),
        (lambda: generate_request("hi", salt=HALF_PAIR), "salt"),
        (lambda: generate_request("hi", stop=["b", HALF_PAIR]), "stop"),
        (lambda: tokenize_request(HALF_PAIR), "text"),
    ],
)
def test_text_without_utf8_form_is_refused_by_name(make: Callable[[], object], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: text with half a surrogate pair has no UTF-8 form$"):
        make()


def test_tokenize_takes_text_or_chat() -> None:
    assert tokenize_request("").WhichOneof("prompt") == "text"
    assert tokenize_request([{"role": "user", "content": "Hi"}]).chat.messages[0].content == "Hi"
    with pytest.raises(TypeError, match="a chat is text or a list of messages, not bytes"):
        tokenize_request(b"Hi")  # type: ignore[arg-type]


def test_detokenize_always_says_what_becomes_of_special_tokens() -> None:
    request = detokenize_request([1, 2], skip_special_tokens=False)

    assert list(request.token_ids) == [1, 2]
    assert request.HasField("skip_special_tokens")
    assert not request.skip_special_tokens


def test_detokenize_refuses_bytes() -> None:
    with pytest.raises(TypeError, match="token ids are a list of integers, not bytes"):
        detokenize_request(b"Hi", skip_special_tokens=False)
