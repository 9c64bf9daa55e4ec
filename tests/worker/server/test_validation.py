"""Every field's bounds and a fuzz over all of them; the rows of sampling are in `test_sampling_bounds`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_loaded_model import BOS_ID, TURN_ID, byte_tokenizer
from support.validated_requests import (
    CONTEXT_LENGTH,
    MODEL,
    VOCABULARY_SIZE,
    caching,
    chat,
    checked,
    served_model,
    with_ids,
)

from prefixcache import Namespace
from prefixcache.v1 import inference_pb2 as pb
from prefixcache_worker.engine.request import Request, SamplingParams, StopConditions
from prefixcache_worker.errors import InvalidRequestError
from prefixcache_worker.server.validation.prompts import token_ids_from_detokenize, token_ids_from_tokenize


def test_absent_fields_take_the_documented_defaults():
    request = checked(with_ids())

    assert request == Request(
        request_id=request.request_id,
        namespace=Namespace(model="tiny-build", tenant="shop"),
        prompt_token_ids=(5, 6, 7),
        sampling=SamplingParams(
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            logit_bias=(),
            seed=None,
        ),
        stop_conditions=StopConditions(
            max_tokens=256, min_tokens=0, stop=(), stop_token_ids=(), include_stop=False, ignore_eos=False
        ),
        num_logprobs=None,
        num_prompt_logprobs=None,
        num_choices=1,
        num_public_tokens=0,
        use_cache=True,
    )
    assert request.request_id != checked(with_ids()).request_id, "a made-up id must be new"


def test_every_field_arrives():
    request = checked(
        pb.GenerateRequest(
            request_id="mine",
            text="abc",
            sampling=pb.SamplingParams(
                temperature=0.0,
                top_p=0.5,
                top_k=3,
                seed=0,
                min_p=0.25,
                repetition_penalty=1.5,
                presence_penalty=-0.5,
                frequency_penalty=0.75,
                logit_bias={9: -100.0, 7: 1.5},
            ),
            stop_conditions=pb.StopConditions(
                max_tokens=2,
                min_tokens=1,
                stop=["x", "yz"],
                stop_token_ids=[9, 0],
                include_stop=True,
                ignore_eos=True,
            ),
            n=64,
            logprobs=0,
            prompt_logprobs=20,
            priority=-100,
            cache=pb.CacheOptions(mode=pb.CacheOptions.MODE_OFF, public_tokens=2, salt="s"),
        )
    )

    assert request == Request(
        request_id="mine",
        namespace=Namespace(model="tiny-build", tenant="shop", salt="s"),
        prompt_token_ids=tuple(byte_tokenizer().encode("abc", add_special=False)),
        sampling=SamplingParams(
            temperature=0.0,
            top_p=0.5,
            top_k=3,
            seed=0,
            min_p=0.25,
            repetition_penalty=1.5,
            presence_penalty=-0.5,
            frequency_penalty=0.75,
            logit_bias=((7, 1.5), (9, -100.0)),
        ),
        stop_conditions=StopConditions(
            max_tokens=2,
            min_tokens=1,
            stop=("x", "yz"),
            stop_token_ids=(9, 0),
            include_stop=True,
            ignore_eos=True,
        ),
        num_logprobs=0,
        num_prompt_logprobs=20,
        num_choices=64,
        num_public_tokens=2,
        use_cache=False,
        priority=-100,
    )


@pytest.mark.parametrize(
    ("message", "field_name", "description"),
    [
        (pb.GenerateRequest(), "prompt", "is missing; set text, token_ids or chat"),
        (with_ids(priority=101), "priority", "101 is not in -100 to 100"),
        (with_ids(priority=-101), "priority", "-101 is not in -100 to 100"),
        (pb.GenerateRequest(text=""), "text", "has no tokens"),
        (pb.GenerateRequest(token_ids=pb.TokenIds()), "token_ids", "has no tokens"),
        (chat(), "chat.messages", "has 0 messages"),
        (chat(*[("user", "")] * 129), "chat.messages", "has 129 messages"),
        (chat(("user", "hi"), ("robot", "x")), "chat.messages[1].role", "system, developer, user, assistant"),
        (
            pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5, VOCABULARY_SIZE])),
            "token_ids.ids[1]",
            "300 is not a token id; they run from 0 to 299",
        ),
        (
            pb.GenerateRequest(token_ids=pb.TokenIds(ids=[2**32 - 1])),
            "token_ids.ids[0]",
            "4294967295 is not a token id",
        ),
        (
            pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5] * 128)),
            "token_ids",
            "has 128 tokens; the context of 128 takes a prompt of at most 127",
        ),
        (pb.GenerateRequest(text="a" * 129), "text", "has 129 tokens; the context of 128"),
        (pb.GenerateRequest(text="a" * 8193), "text", "has 8193 characters; .* at most 8192"),
        (chat(("user", "a" * 200)), "chat", r"has 2\d\d tokens; the context of 128"),
        (chat(("user", "a" * 5000), ("user", "a" * 5000)), "chat", "has 10000 characters"),
        (with_ids(request_id="i" * 257), "request_id", "has 257 characters; at most 256"),
        (with_ids(n=0), "n", "0 is not in 1 to 64"),
        (with_ids(n=65), "n", "65 is not in 1 to 64"),
        (caching(mode=9), "cache.mode", "9 is not a known mode"),
        (caching(salt="\u00e9" * 32769), "cache.salt", "has 65538 bytes; at most 65536"),
        (caching(public_tokens=4), "cache.public_tokens", "4 of 3 prompt tokens cannot be public"),
        (caching(public_messages=0), "cache.public_messages", "needs a chat prompt"),
        (
            chat(("user", "hi"), cache=pb.CacheOptions(public_messages=2)),
            "cache.public_messages",
            "2 of 1 messages cannot be public",
        ),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_its_field(
    message: pb.GenerateRequest, field_name: str, description: str
):
    with pytest.raises(InvalidRequestError, match=description) as caught:
        checked(message)
    assert caught.value.field_name == field_name


@pytest.mark.parametrize(
    "message",
    [
        pb.GenerateRequest(token_ids=pb.TokenIds(ids=[0, VOCABULARY_SIZE - 1])),
        pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5] * 127)),
        with_ids(request_id="i" * 256),
        caching(salt="s" * 65536),
        caching(mode=pb.CacheOptions.MODE_UNSPECIFIED, public_tokens=3),
        chat(("system", ""), ("user", ""), ("assistant", "")),
    ],
)
def test_values_on_their_bounds_are_taken(message: pb.GenerateRequest):
    assert isinstance(checked(message), Request)


def test_empty_text_is_one_token_where_the_model_wants_a_bos():
    model = served_model(tokenizer=byte_tokenizer(add_bos=True))
    assert checked(pb.GenerateRequest(text=""), model).prompt_token_ids == (BOS_ID,)


def test_a_chat_is_rendered_with_the_generation_prompt_and_without_another_bos():
    model = served_model(tokenizer=byte_tokenizer(add_bos=True))
    token_ids = checked(chat(("user", "hi")), model).prompt_token_ids
    assert token_ids[0] == TURN_ID
    assert model.tokenizer.decode(token_ids, skip_special_tokens=False) == (
        "<|turn|>user\nhi</s><|turn|>assistant\n"
    )


def test_public_messages_end_where_the_next_message_begins():
    turns = [("system", "be kind"), ("user", "hi")]
    tokenizer = MODEL.tokenizer
    for num_messages, text in enumerate(["", "<|turn|>system\nbe kind</s>", "<|turn|>system\nbe kind</s>"]):
        public = checked(chat(*turns, cache=pb.CacheOptions(public_messages=num_messages)))
        if num_messages == 2:
            text += "<|turn|>user\nhi</s>"
        assert public.num_public_tokens == len(tokenizer.encode(text, add_special=False))


def test_a_model_without_chat_template_takes_no_chat():
    with pytest.raises(InvalidRequestError, match="chat: this model has no chat template"):
        checked(chat(("user", "hi")), served_model(chat_template=None))


def test_tokenize_gives_what_generate_would_compute():
    turns = [pb.ChatMessage(role="user", content="hi")]
    for field in ({"text": "some text"}, {"chat": pb.ChatMessages(messages=turns)}):
        token_ids = token_ids_from_tokenize(pb.TokenizeRequest(**field), model=MODEL)
        assert tuple(token_ids) == checked(pb.GenerateRequest(**field)).prompt_token_ids
    assert token_ids_from_tokenize(pb.TokenizeRequest(text=""), model=MODEL) == []
    assert len(token_ids_from_tokenize(pb.TokenizeRequest(text="a" * 1000), model=MODEL)) == 1000
    with pytest.raises(InvalidRequestError, match="prompt: is missing; set text or chat"):
        token_ids_from_tokenize(pb.TokenizeRequest(), model=MODEL)


def test_detokenize_takes_known_ids_only():
    assert token_ids_from_detokenize(pb.DetokenizeRequest(), model=MODEL) == []
    assert token_ids_from_detokenize(pb.DetokenizeRequest(token_ids=[299]), model=MODEL) == [299]
    with pytest.raises(InvalidRequestError, match=r"token_ids\[2\]: 300 is not a token id"):
        token_ids_from_detokenize(pb.DetokenizeRequest(token_ids=[1, 2, 300]), model=MODEL)


def outcome(message: pb.GenerateRequest) -> Request | InvalidRequestError:
    try:
        return checked(message)
    except InvalidRequestError as error:
        return error


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


TURNS = st.builds(
    pb.ChatMessage, role=st.sampled_from(["system", "user", "assistant", "tool", ""]), content=st.text()
)
PROMPTS = st.one_of(
    st.just({}),
    st.builds(lambda text: {"text": text}, st.text(max_size=200)),
    st.builds(
        lambda ids: {"token_ids": pb.TokenIds(ids=ids)},
        st.lists(st.integers(0, VOCABULARY_SIZE + 5) | st.integers(0, 2**32 - 1), max_size=140),
    ),
    st.builds(lambda turns: {"chat": pb.ChatMessages(messages=turns)}, st.lists(TURNS, max_size=4)),
)
FIELDS = optional(
    request_id=st.text(max_size=300),
    n=st.integers(0, 2**32 - 1) | st.integers(0, 70),
    priority=st.integers(-(2**31), 2**31 - 1) | st.integers(-110, 110),
    sampling=st.builds(
        lambda fields: pb.SamplingParams(**fields),
        optional(
            temperature=st.floats(width=32) | st.floats(0, 2, width=32),
            top_p=st.floats(width=32) | st.floats(0, 1, width=32),
            top_k=st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 400),
            seed=st.integers(0, 2**64 - 1),
            min_p=st.floats(width=32) | st.floats(0, 1, width=32),
            repetition_penalty=st.floats(width=32) | st.floats(0.5, 2, width=32),
            presence_penalty=st.floats(width=32) | st.floats(-2, 2, width=32),
            frequency_penalty=st.floats(width=32) | st.floats(-2, 2, width=32),
            logit_bias=st.dictionaries(st.integers(0, 310), st.floats(-110, 110, width=32), max_size=3),
        ),
    ),
    logprobs=st.integers(0, 25),
    prompt_logprobs=st.integers(0, 2**32 - 1) | st.integers(0, 20),
    stop_conditions=st.builds(
        lambda fields: pb.StopConditions(**fields),
        optional(
            max_tokens=st.integers(0, 2**32 - 1),
            min_tokens=st.integers(0, 2**32 - 1) | st.integers(0, 10),
            stop_token_ids=st.lists(st.integers(0, 310), max_size=3),
            include_stop=st.booleans(),
            stop=st.lists(st.text(max_size=10), max_size=18),
            ignore_eos=st.booleans(),
        ),
    ),
    cache=st.builds(
        lambda fields, public: pb.CacheOptions(**fields, **public),
        optional(mode=st.integers(-2, 4), salt=st.text(max_size=20)),
        optional(public_tokens=st.integers(0, 200)) | optional(public_messages=st.integers(0, 5)),
    ),
)


@settings(max_examples=400, deadline=None)
@given(PROMPTS, FIELDS)
def test_any_message_becomes_a_sound_request_or_an_invalid_request_error(
    prompt: dict[str, Any], fields: dict[str, Any]
):
    message = pb.GenerateRequest(**prompt, **fields)
    message = pb.GenerateRequest.FromString(message.SerializeToString())
    request = outcome(message)
    if isinstance(request, InvalidRequestError):
        assert request.field_name
        assert request.description
        return
    assert 1 <= len(request.request_id) <= 256
    assert 1 <= len(request.prompt_token_ids) < CONTEXT_LENGTH
    assert max(request.prompt_token_ids) < VOCABULARY_SIZE
    assert 0 <= request.sampling.temperature <= 100
    assert 0 < request.sampling.top_p <= 1
    assert 0 <= request.sampling.top_k < VOCABULARY_SIZE
    assert 0 <= request.sampling.min_p <= 1
    assert 0 < request.sampling.repetition_penalty <= 10
    assert abs(request.sampling.presence_penalty) <= 2
    assert abs(request.sampling.frequency_penalty) <= 2
    assert all(
        0 <= token < VOCABULARY_SIZE and abs(bias) <= 100 for token, bias in request.sampling.logit_bias
    )
    assert 0 <= request.stop_conditions.min_tokens <= request.stop_conditions.max_tokens
    assert request.stop_conditions.max_tokens >= 1
    assert all(request.stop_conditions.stop)
    assert all(token < VOCABULARY_SIZE for token in request.stop_conditions.stop_token_ids)
    assert (request.num_logprobs or 0) <= 20
    assert (request.num_prompt_logprobs or 0) <= 20
    assert 1 <= request.num_choices <= 64
    assert -100 <= request.priority <= 100
    assert 0 <= request.num_public_tokens <= len(request.prompt_token_ids)


def test_detokenize_takes_no_more_ids_than_the_context():
    """Longer lists would hold up every stream while they are copied and decoded."""
    most = [1] * MODEL.context_length
    assert token_ids_from_detokenize(pb.DetokenizeRequest(token_ids=most), model=MODEL) == most
    with pytest.raises(InvalidRequestError, match=f"has {MODEL.context_length + 1} ids; at most"):
        token_ids_from_detokenize(pb.DetokenizeRequest(token_ids=[*most, 1]), model=MODEL)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=20), st.integers(100, 2**29 - 1))
def test_b62_fields_that_nobody_knows_change_nothing(content: bytes, number: int):
    """Whatever a client adds under a number of its own, nothing behind the message sees it."""
    message = with_ids(request_id="mine")
    unknown = pb.GenerateRequest.FromString(message.SerializeToString() + length_delimited(number, content))
    assert checked(unknown) == checked(message)


def length_delimited(number: int, content: bytes) -> bytes:
    """A field of a message on the wire: its key as a varint, then a length and so many bytes."""
    key, encoded = number << 3 | 2, bytearray()
    while key > 127:
        encoded.append(key & 127 | 128)
        key >>= 7
    return bytes([*encoded, key, len(content)]) + content
