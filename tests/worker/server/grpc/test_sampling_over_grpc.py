"""Sampling fields, log-probabilities and stops over real gRPC."""

from __future__ import annotations

import math
from typing import Any

import grpc
import pytest
from support.hand_engine import reference, stream
from support.served_worker import ServedWorker, greedy_request, served
from support.tiny_loaded_model import EOS_ID, byte_tokenizer, loaded
from support.tiny_model import tiny_decoder

from prefixcache.v1 import inference_pb2 as pb
from prefixcache_worker.model.scripted_model import ScriptedModel

PROMPT = stream("a", 40)
GREEDY = pb.SamplingParams(temperature=0)


async def joined(worker: ServedWorker, message: pb.GenerateRequest) -> tuple[list[Any], list[pb.Delta], Any]:
    """(the prompt's log-probabilities, each choice's deltas as one, the completion)."""
    prompt: list[pb.TokenLogprobs] = []
    choices: dict[int, pb.Delta] = {}
    async for response in worker.generate(message):
        match response.WhichOneof("event"):
            case "prompt_logprobs":
                assert not choices, "the prompt comes first"
                prompt += response.prompt_logprobs.logprobs
            case "delta":
                delta, choice = response.delta, choices.setdefault(response.delta.index, pb.Delta())
                choice.MergeFrom(delta)
    return prompt, [choices[index] for index in sorted(choices)], response.completion


async def test_log_probabilities_of_prompt_and_answer():
    message = greedy_request(PROMPT, 8, n=2, logprobs=2, prompt_logprobs=1)
    async with served(loaded(tiny_decoder())) as worker:
        for _ in range(2):
            prompt, choices, completion = await joined(worker, message)
            assert [score.HasField("logprob") for score in prompt] == [False] + [True] * 39
            assert [len(score.top_token_ids) for score in prompt] == [0] + [1] * 39
            assert all(-math.inf < score.logprob <= score.top_logprobs[0] <= 0 for score in prompt[1:])
            for choice in choices:
                assert choice.token_ids == reference(PROMPT, 8)
                assert [score.top_token_ids[0] for score in choice.logprobs] == choice.token_ids
                assert all(len(score.top_logprobs) == 2 for score in choice.logprobs)
                assert all(score.logprob == score.top_logprobs[0] for score in choice.logprobs)
            assert (completion.usage.cached_tokens, completion.usage.computed_tokens) == (0, 40)
        plain, [choice], completion = await joined(worker, greedy_request(PROMPT, 8))
    assert (plain, list(choice.logprobs)) == ([], [])
    assert completion.usage.cached_tokens == 39


[SPACE] = byte_tokenizer().encode(" ", add_special=False)


@pytest.mark.parametrize(
    ("stop_conditions", "text", "field", "value"),
    [
        ({"stop": ["alle", "!"]}, "Grüße an ", "stop_text", "alle"),
        ({"stop": ["alle"], "include_stop": True}, "Grüße an alle", "stop_text", "alle"),
        ({"stop_token_ids": [SPACE]}, "Grüße", "stop_token_id", SPACE),
        ({"stop": ["Gr"], "min_tokens": 3}, "Grüße an alle!", None, None),
        ({}, "Grüße an alle!", None, None),
    ],
    ids=str,
)
async def test_what_stopped_an_answer(
    stop_conditions: dict[str, Any], text: str, field: str | None, value: Any
):
    script = byte_tokenizer().encode("Grüße an alle!", add_special=False)
    model = ScriptedModel(script, vocabulary_size=300, eos_token_id=EOS_ID)
    message = pb.GenerateRequest(
        text="Hallo", sampling=GREEDY, stop_conditions=pb.StopConditions(**stop_conditions)
    )
    async with served(loaded(model)) as worker:
        deltas = [response.delta async for response in worker.generate(message)][:-1]
    assert "".join(delta.text for delta in deltas) == text
    assert deltas[-1].finish_reason == pb.FINISH_REASON_STOP
    assert deltas[-1].WhichOneof("stop_reason") == field
    assert field is None or getattr(deltas[-1], field) == value
    assert all(delta.WhichOneof("stop_reason") is None for delta in deltas[:-1])


async def test_a_penalty_changes_the_answer_and_a_cached_prompt_does_not():
    sampling = pb.SamplingParams(
        temperature=0, repetition_penalty=1.5, presence_penalty=2, frequency_penalty=0.5
    )
    message = greedy_request(PROMPT, 20, sampling=sampling)
    async with served(loaded(tiny_decoder())) as worker:
        cold, warm = await worker.answer(message), await worker.answer(message)
    assert (cold.completion.usage.cached_tokens, warm.completion.usage.cached_tokens) == (0, 39)
    assert cold.token_ids == warm.token_ids != reference(PROMPT, 20)


async def test_b66_no_text_of_the_prompt_comes_out_when_it_ends_inside_a_character():
    """What is left of the character is no UTF-8, and comes out as U+FFFD."""
    tokenizer = byte_tokenizer()
    euro = tokenizer.encode("€", add_special=False)
    prompt = [*tokenizer.encode("Hello world ", add_special=False), *euro[:2]]
    script = [euro[2], *tokenizer.encode("x", add_special=False)]
    async with served(loaded(ScriptedModel(script, vocabulary_size=300, eos_token_id=EOS_ID))) as worker:
        answer = await worker.answer(pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling=GREEDY))
    assert answer.text == "\ufffdx"


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": math.nan}, "temperature"),
    ({"temperature": math.inf}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    *(({"top_p": value}, "top_p") for value in (0.0, -1.0, 1.1, math.nan)),
    ({"top_k": -2}, "top_k"),
    *(({f"{kind}_penalty": math.nan}, f"{kind}_penalty") for kind in ("repetition", "presence", "frequency")),
    ({"min_p": math.nan}, "min_p"),
    ({"logit_bias": {5: math.nan}}, "logit_bias[5]"),
]


async def test_b72_bad_sampling_values_are_refused_by_name_and_odd_ones_work():
    async with served(loaded(tiny_decoder())) as worker:
        for fields, name in BAD_FIELDS:
            error = await worker.refusal(greedy_request(PROMPT, 4, sampling=pb.SamplingParams(**fields)))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert error.details().startswith(f"sampling.{name}: ")
        assert (await worker.stats()).tokens.prompt == 0
        for fields in ({"temperature": 0}, {"temperature": 1e-6}, {"temperature": 1e-40}, {"top_k": 1}):
            sampling = pb.SamplingParams(**fields)
            answer = await worker.answer(greedy_request(PROMPT, 4, sampling=sampling))
            assert answer.token_ids == reference(PROMPT, 4)
        seeded = [
            await worker.answer(greedy_request(PROMPT, 4, sampling=pb.SamplingParams(seed=1, **fields)))
            for fields in ({}, {"top_p": 1}, {"top_k": -1}, {"top_k": 0}, {"top_k": 1001})
        ]
    assert len({tuple(answer.token_ids) for answer in seeded}) == 1


async def test_b74_an_unknown_token_is_refused_before_anything_is_done():
    async with served(loaded(tiny_decoder(vocabulary_size=1000))) as worker:
        before = await worker.stats()
        for message, name, token_id in [
            (greedy_request([5, 1000], 4), "token_ids.ids[1]", 1000),
            (greedy_request([2**31], 4), "token_ids.ids[0]", 2**31),
            (
                greedy_request([5], 4, sampling=pb.SamplingParams(logit_bias={1000: 1})),
                "sampling.logit_bias[1000]",
                1000,
            ),
            (
                pb.GenerateRequest(text="a", stop_conditions=pb.StopConditions(stop_token_ids=[1000])),
                "stop_conditions.stop_token_ids[0]",
                1000,
            ),
        ]:
            error = await worker.refusal(message)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert error.details() == f"{name}: {token_id} is not a token id; they run from 0 to 999"
        after = await worker.stats()
        assert (after.blocks, after.tokens) == (before.blocks, before.tokens)
        last = await worker.answer(
            greedy_request([999], 4, sampling=pb.SamplingParams(temperature=0, logit_bias={999: 100}))
        )
    assert last.token_ids == [999] * 4
