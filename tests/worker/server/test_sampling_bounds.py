"""The bounds of sampling, stops and log-probabilities, one row each."""

from __future__ import annotations

import math

import pytest
from support.validated_requests import (
    CALLER,
    VOCABULARY_SIZE,
    checked,
    sampling,
    served_model,
    stopping,
    with_ids,
)

from prefixcache.v1 import inference_pb2 as pb
from prefixcache_worker.engine.request import Request
from prefixcache_worker.errors import InvalidRequestError
from prefixcache_worker.server.validation.generate import request_from_proto


@pytest.mark.parametrize(
    ("message", "field_name", "description"),
    [
        (sampling(temperature=-0.1), "sampling.temperature", "-0.1 is not in 0 to 100"),
        (sampling(temperature=math.nan), "sampling.temperature", "nan is not in 0 to 100"),
        (sampling(temperature=math.inf), "sampling.temperature", "inf is not in 0 to 100"),
        (sampling(temperature=100.1), "sampling.temperature", "100.1 is not in 0 to 100"),
        (sampling(top_p=0.0), "sampling.top_p", r"0 is not in \(0, 1\]"),
        (sampling(top_p=-1.0), "sampling.top_p", r"-1 is not in \(0, 1\]"),
        (sampling(top_p=1.1), "sampling.top_p", r"1.1 is not in \(0, 1\]"),
        (sampling(top_p=math.nan), "sampling.top_p", r"nan is not in \(0, 1\]"),
        (sampling(top_k=-2), "sampling.top_k", "-2 is below -1"),
        (sampling(min_p=-0.1), "sampling.min_p", "-0.1 is not in 0 to 1"),
        (sampling(min_p=1.5), "sampling.min_p", "1.5 is not in 0 to 1"),
        (sampling(min_p=math.nan), "sampling.min_p", "nan is not in 0 to 1"),
        (sampling(repetition_penalty=0.0), "sampling.repetition_penalty", "0 is not in 0.1 to 10"),
        (sampling(repetition_penalty=math.inf), "sampling.repetition_penalty", "inf is not in 0.1 to 10"),
        (sampling(repetition_penalty=math.nan), "sampling.repetition_penalty", "nan is not in 0.1 to 10"),
        (sampling(presence_penalty=-2.1), "sampling.presence_penalty", "-2.1 is not in -2 to 2"),
        (sampling(presence_penalty=math.nan), "sampling.presence_penalty", "nan is not in -2 to 2"),
        (sampling(frequency_penalty=2.1), "sampling.frequency_penalty", "2.1 is not in -2 to 2"),
        (sampling(frequency_penalty=math.nan), "sampling.frequency_penalty", "nan is not in -2 to 2"),
        (sampling(logit_bias={5: 100.5}), "sampling.logit_bias[5]", "100.5 is not in -100 to 100"),
        (sampling(logit_bias={5: math.nan}), "sampling.logit_bias[5]", "nan is not in -100 to 100"),
        (sampling(logit_bias={5: -math.inf}), "sampling.logit_bias[5]", "-inf is not in -100 to 100"),
        (
            sampling(logit_bias={VOCABULARY_SIZE: 1.0}),
            "sampling.logit_bias[300]",
            "300 is not a token id; they run from 0 to 299",
        ),
        (
            sampling(logit_bias=dict.fromkeys(range(301), 0.0)),
            "sampling.logit_bias",
            "has 301 tokens; at most 300",
        ),
        (with_ids(logprobs=21), "logprobs", "21 is not in 0 to 20"),
        (with_ids(prompt_logprobs=21), "prompt_logprobs", "21 is not in 0 to 20"),
        (stopping(stop_token_ids=[7, VOCABULARY_SIZE]), "stop_conditions.stop_token_ids[1]", "300 is not a"),
        (stopping(stop_token_ids=[1] * 257), "stop_conditions.stop_token_ids", "has 257 ids; at most 256"),
        (
            stopping(max_tokens=4, min_tokens=5),
            "stop_conditions.min_tokens",
            "5 is more than max_tokens, which is 4",
        ),
        (stopping(min_tokens=257), "stop_conditions.min_tokens", "257 is more than max_tokens, which is 256"),
        (stopping(max_tokens=0), "stop_conditions.max_tokens", "0 is not at least 1"),
        (stopping(stop=["x"] * 17), "stop_conditions.stop", "has 17 texts; at most 16"),
        (stopping(stop=["x", ""]), "stop_conditions.stop[1]", "has 0 characters; 1 to 1024"),
        (stopping(stop=["x" * 1025]), "stop_conditions.stop[0]", "has 1025 characters"),
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
        sampling(temperature=0.0, top_p=1.0, top_k=1, seed=2**64 - 1),
        sampling(temperature=100.0, top_p=1e-6, top_k=2**31 - 1),
        sampling(min_p=1.0, repetition_penalty=10.0, presence_penalty=2.0, frequency_penalty=-2.0),
        sampling(min_p=0.0, repetition_penalty=0.1, presence_penalty=-2.0, frequency_penalty=2.0),
        sampling(logit_bias={0: -100.0, VOCABULARY_SIZE - 1: 100.0}),
        sampling(logit_bias=dict.fromkeys(range(300), 0.0)),
        with_ids(logprobs=20, prompt_logprobs=0),
        stopping(max_tokens=4, min_tokens=4, stop_token_ids=[0, VOCABULARY_SIZE - 1] * 128),
        stopping(max_tokens=2**32 - 1, stop=["x" * 1024] * 16),
    ],
)
def test_values_on_their_bounds_are_taken(message: pb.GenerateRequest):
    assert isinstance(checked(message), Request)


@pytest.mark.parametrize("top_k", [-1, 0, VOCABULARY_SIZE, VOCABULARY_SIZE + 1])
def test_a_top_k_that_keeps_all_tokens_becomes_zero(top_k: int):
    assert checked(sampling(top_k=top_k)).sampling.top_k == 0
    assert checked(sampling(top_k=VOCABULARY_SIZE - 1)).sampling.top_k == VOCABULARY_SIZE - 1


def test_min_tokens_needs_a_token_that_goes_on():
    model = served_model(vocabulary_size=4)
    every = {"stop_token_ids": [0, 1, 3], "min_tokens": 1}
    with pytest.raises(InvalidRequestError, match="every token of this model does") as caught:
        request_from_proto(
            pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1]), stop_conditions=pb.StopConditions(**every)),
            caller=CALLER,
            model=model,
        )
    assert caught.value.field_name == "stop_conditions.min_tokens"
    past_eos = pb.StopConditions(**every, ignore_eos=True)
    message = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1]), stop_conditions=past_eos)
    assert request_from_proto(message, caller=CALLER, model=model).stop_conditions.min_tokens == 1
