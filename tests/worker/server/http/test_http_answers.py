"""Answers over HTTP: what they say, whole and streamed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from support.http_worker import events_of, http_served, refusal
from support.tiny_loaded_model import BOS_ID, EOS_ID, byte_tokenizer, loaded
from support.tiny_model import tiny_decoder

from prefixcache_worker.model.chat_template import ChatTemplate
from prefixcache_worker.model.echo_model import EchoModel
from prefixcache_worker.model.loader import LoadedModel
from prefixcache_worker.model.scripted_model import ScriptedModel

TOKENIZER = byte_tokenizer()


def says(text: str, **model: Any) -> LoadedModel:
    """A model that answers everything with one text."""
    script = TOKENIZER.encode(text, add_special=False)
    return loaded(ScriptedModel(script, vocabulary_size=260, eos_token_id=EOS_ID), **model)


def echoes() -> LoadedModel:
    return loaded(EchoModel(vocabulary_size=260, eos_token_id=EOS_ID))


async def test_a_chat_answer_has_all_that_clients_look_for():
    async with http_served(says("Hello!")) as worker:
        answers = [(await worker.chat("Say hello to everybody.")).json() for _ in range(2)]
    for answer, cached in zip(answers, (0, 40), strict=True):
        assert answer.pop("id").startswith("chatcmpl-")
        assert answer.pop("created") > 1_700_000_000
        assert answer == {
            "object": "chat.completion",
            "model": "tiny",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "Hello!", "refusal": None},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": 41,
                "completion_tokens": 7,
                "total_tokens": 48,
                "prompt_tokens_details": {"cached_tokens": cached},
            },
        }


@pytest.mark.parametrize("include_usage", [True, False])
async def test_b127_a_streamed_chat(include_usage: bool):
    """Texts never come with a finish reason; the usage comes once, last, and as a whole answer has it."""
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    async with http_served(says("H\u00e9y")) as worker:
        whole = (await worker.chat("x" * 50, n=2)).json()
        response = await worker.chat("x" * 50, n=2, stream=True, **options)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = events_of(response.text)
    if include_usage:
        last = events.pop()
        assert last["choices"] == []
        whole_usage = whole["usage"] | {"prompt_tokens_details": {"cached_tokens": 67}}
        assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        assert last["usage"] == whole_usage
    assert all(event.get("usage", "absent") == (None if include_usage else "absent") for event in events)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    for index in range(2):
        choices = [c for event in events for c in event["choices"] if c["index"] == index]
        role, *texts, end = choices
        assert role == {
            "index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None
        }  # fmt: skip
        assert all(text["finish_reason"] is None and text["delta"].keys() == {"content"} for text in texts)
        assert "".join(text["delta"]["content"] for text in texts) == "H\u00e9y"
        assert end == {"index": index, "delta": {}, "finish_reason": "stop"}


async def test_b127_a_streamed_completion():
    async with http_served(says("Hey")) as worker:
        response = await worker.complete("x" * 50, stream=True, stream_options={"include_usage": True})
    *events, last = events_of(response.text)
    *texts, end = [event["choices"][0] for event in events]
    assert "".join(text["text"] for text in texts) == "Hey"
    assert {text["finish_reason"] for text in texts} == {None}
    assert (end["text"], end["finish_reason"]) == ("", "stop")
    assert (last["choices"], last["usage"]["prompt_tokens_details"]) == ([], {"cached_tokens": 0})


async def test_b116_several_prompts_are_answered_in_their_order():
    """Each is a request of its own; short ones end before long ones that were sent first."""
    prompts = [[[20 + number] * (9 - number) for number in range(k, k + 3)] for k in range(6)]

    async with http_served(echoes()) as worker:

        async def batch(prompt: list[list[int]], **fields: Any) -> None:
            answer = (await worker.complete(prompt, max_tokens=20, temperature=0, **fields)).json()
            texts = [TOKENIZER.decode(ids, skip_special_tokens=True) for ids in prompt]
            choices = answer["choices"]
            assert [choice["index"] for choice in choices] == list(range(len(choices)))
            copies = len(choices) // len(texts)
            assert [choice["text"] for choice in choices] == [text for text in texts for _ in range(copies)]
            assert answer["usage"]["prompt_tokens"] == sum(map(len, prompt))

        for _ in range(5):
            await asyncio.gather(*(batch(prompt) for prompt in prompts[:4]))
        await batch(prompts[4], n=2)
        streamed = events_of((await worker.complete(prompts[5], max_tokens=20, stream=True)).text)
    texts = ["".join(c["text"] for e in streamed for c in e["choices"] if c["index"] == i) for i in range(3)]
    assert texts == [TOKENIZER.decode(ids, skip_special_tokens=True) for ids in prompts[5]]


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab"]),
        (["ab"], ["ab"]),
        (["ab", "cde"], ["ab", "cde"]),
        (TOKENIZER.encode("ab", add_special=False), ["ab"]),
        ([TOKENIZER.encode(text, add_special=False) for text in ("ab", "cde")], ["ab", "cde"]),
    ],
)
async def test_a_prompt_has_four_forms(prompt: Any, texts: list[str]):
    async with http_served(echoes()) as worker:
        answer = (await worker.complete(prompt)).json()
    assert [choice["text"] for choice in answer["choices"]] == texts


@pytest.mark.parametrize("has_bos", [True, False])
async def test_b112_a_conversation_has_the_bos_token_of_its_template_and_no_other(has_bos: bool):
    """The template's ids sent as a completion hit all of it; a text that begins with BOS gets no second."""
    source = "<s>" * has_bos + "{% for m in messages %}<|turn|>{{ m.content }}</s>{% endfor %}"
    template = ChatTemplate(source, special_tokens={}, source="test")
    model = replace(loaded(tiny_decoder(vocabulary_size=260), add_bos=True), chat_template=template)
    turns = [{"role": "user", "content": "Good morning to you all."}]
    rendered = template.render(turns, add_generation_prompt=True)
    token_ids = TOKENIZER.encode(rendered, add_special=False)
    assert token_ids.count(BOS_ID) == has_bos
    async with http_served(model) as worker:
        chat = (await worker.chat(turns[0]["content"], max_tokens=1)).json()["usage"]
        as_ids = (await worker.complete(token_ids, max_tokens=1)).json()["usage"]
        as_text = (await worker.complete(rendered, max_tokens=1)).json()["usage"]
        without = (await worker.complete(rendered.removeprefix("<s>"), max_tokens=1)).json()["usage"]
    length = len(token_ids)
    assert (chat["prompt_tokens"], as_ids["prompt_tokens"]) == (length, length)
    assert as_ids["prompt_tokens_details"]["cached_tokens"] == length - 1
    # A completion is no conversation: its BOS token is the tokenizer's to add.
    assert as_text["prompt_tokens"] == without["prompt_tokens"] == length + (not has_bos)
    assert as_text["prompt_tokens_details"]["cached_tokens"] == (length - 1 if has_bos else 0)
    assert without["prompt_tokens_details"]["cached_tokens"] == as_text["prompt_tokens"] - 1


async def test_logprobs_of_a_chat_are_those_of_its_tokens():
    async with http_served(says("\u00e9")) as worker:
        whole = (await worker.chat(logprobs=True, top_logprobs=2)).json()["choices"][0]
        response = await worker.chat(logprobs=True, top_logprobs=2, stream=True)
    content = whole["logprobs"]["content"]
    assert [(token["token"], token["bytes"]) for token in content] == [
        ("bytes:\\xc3", [0xC3]),
        ("bytes:\\xa9", [0xA9]),
        ("</s>", []),
    ]
    for token in content:
        assert token["logprob"] == pytest.approx(0, abs=1e-6)
        assert token["top_logprobs"][0]["token"] == token["token"]
        assert token["top_logprobs"][0]["logprob"] == token["logprob"]
        assert len(token["top_logprobs"]) == 2
    choices = [choice for event in events_of(response.text) for choice in event["choices"]]
    streamed = [
        token for choice in choices if "logprobs" in choice for token in choice["logprobs"]["content"]
    ]
    assert streamed == content


async def test_logprobs_and_echo_of_a_completion():
    """Offsets point at where in the text each token begins; the prompt's first token has no score."""
    async with http_served(says("\u00e9!")) as worker:
        echoed = (await worker.complete("ab", logprobs=1, echo=True, n=2)).json()["choices"]
        response = await worker.complete("ab", logprobs=1, echo=True, stream=True)
        plain = (await worker.complete("ab", echo=True)).json()["choices"][0]
    for choice in echoed:
        assert choice["text"] == "ab\u00e9!"
        logprobs = choice["logprobs"]
        assert logprobs["tokens"] == ["a", "b", "bytes:\\xc3", "bytes:\\xa9", "!", "</s>"]
        assert logprobs["text_offset"] == [0, 1, 2, 2, 3, 4]
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["token_logprobs"][1:] == pytest.approx([-40, 0, 0, 0, 0], abs=1e-3)
        assert logprobs["top_logprobs"][0] is None
        assert logprobs["top_logprobs"][1].keys() == {"b", "bytes:\\xc3"}
    assert (plain["text"], plain["logprobs"]) == ("ab\u00e9!", None)
    chunks = [event["choices"][0] for event in events_of(response.text)]
    assert "".join(chunk["text"] for chunk in chunks) == "ab\u00e9!"
    scored = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"]]
    for name, values in echoed[0]["logprobs"].items():
        assert [value for part in scored for value in part[name]] == values


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


async def test_tool_calls_whole_and_streamed():
    """The name comes first and alone, then the arguments in pieces; ids tell the calls apart."""
    async with http_served(says(f"I look.\n{CALL}\n{CALL}")) as worker:
        whole = (await worker.chat(tools=[WEATHER])).json()["choices"][0]
        response = await worker.chat(tools=[WEATHER], stream=True)
        untold = (await worker.chat(tools=[WEATHER], tool_choice="none")).json()["choices"][0]
    assert (whole["finish_reason"], whole["message"]["content"]) == ("tool_calls", "I look.")
    calls = whole["message"]["tool_calls"]
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert [(call["type"], call["function"]) for call in calls] == [("function", function)] * 2
    assert len({call["id"] for call in calls}) == 2

    choices = [choice for event in events_of(response.text) for choice in event["choices"]]
    assert choices[-1] == {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "I look."
    deltas = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    for index in range(2):
        first, *rest = [delta for delta in deltas if delta["index"] == index]
        assert first["id"].startswith("call_")
        assert first["function"] == {"name": "weather", "arguments": ""}
        assert all(delta.keys() == {"index", "function"} for delta in rest)
        assert "".join(delta["function"]["arguments"] for delta in rest) == '{"city": "Oslo"}'
        assert len(rest) > 3
    assert (untold["finish_reason"], untold["message"]["content"]) == ("stop", f"I look.\n{CALL}\n{CALL}")


async def test_a_model_that_knows_nothing_calls_and_answers_as_it_must():
    """Random weights, held to the form by the constraint that the body asks for."""
    colour = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    paint = {"type": "function", "function": {"name": "paint", "parameters": colour}}
    form = {"type": "json_schema", "json_schema": {"name": "colour", "schema": colour}}
    async with http_served(loaded(tiny_decoder(vocabulary_size=260))) as worker:
        called, answered, streamed = [
            (await worker.chat(temperature=0, max_tokens=200, **fields))
            for fields in (
                {"tools": [paint], "tool_choice": "required", "parallel_tool_calls": False},
                {"response_format": form},
                {"response_format": form, "stream": True},
            )
        ]
        refused = await worker.chat(response_format={**form, "json_schema": {"name": "x", "schema": BAD}})
        bad_tool = {"type": "function", "function": {"name": "paint", "parameters": BAD}}
        refused_tool = await worker.chat(tools=[bad_tool])
    choice = called.json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "paint"
    assert json.loads(call["function"]["arguments"])["colour"] in ("red", "blue")
    content = answered.json()["choices"][0]["message"]["content"]
    assert json.loads(content)["colour"] in ("red", "blue")
    deltas = [choice["delta"] for event in events_of(streamed.text) for choice in event["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == content
    assert refusal(refused, 400)["param"] == "response_format.json_schema.schema"
    assert refusal(refused_tool, 400)["param"] == "tools"


BAD = {"type": "object", "properties": {"a": {"type": "no type"}}}


async def test_a_call_that_is_cut_short_says_so():
    async with http_served(says(CALL)) as worker:
        choice = (await worker.chat(tools=[WEATHER], max_tokens=56)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "O'


async def test_a_conversation_with_tools_begins_as_it_did_before():
    """So what was said before is cached when the result of a call is sent."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    turns: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "Weather?"}]}]
    body = {"model": "tiny", "tools": [WEATHER], "messages": turns}
    async with http_served(says(CALL)) as worker:
        first = (await worker.client.post("/v1/chat/completions", json=body)).json()
        turns.append(first["choices"][0]["message"] | {"tool_calls": [call]})
        turns.append({"role": "tool", "tool_call_id": "c1", "content": "Rain."})
        second = (await worker.client.post("/v1/chat/completions", json=body)).json()
    # All but the token that ended the answer, which was never computed.
    before = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == before
    assert second["usage"]["prompt_tokens"] > before


async def test_the_sampling_fields_reach_the_engine():
    async with http_served(loaded(tiny_decoder(vocabulary_size=260))) as worker:
        only_a = {"logit_bias": {str(TOKENIZER.encode("a", add_special=False)[0]): 100}}
        biased = (await worker.complete("x", max_tokens=5, **only_a)).json()["choices"][0]
        stopped = (await worker.complete("x", max_tokens=5, stop="a", **only_a)).json()["choices"][0]
        included = (
            await worker.complete("x", stop=["a"], include_stop_str_in_output=True, min_tokens=3, **only_a)
        ).json()["choices"][0]
        seeded = [
            (await worker.chat(seed=seed, temperature=1.5, max_completion_tokens=8, ignore_eos=True)).json()
            for seed in (-1, -1, 2**64 - 1, 5)
        ]
        by_id = (await worker.complete("x", stop_token_ids=[68], top_k=1, min_p=0.5, **only_a)).json()
    assert (biased["text"], biased["finish_reason"]) == ("aaaaa", "length")
    assert (stopped["text"], stopped["finish_reason"]) == ("", "stop")
    assert (included["text"], included["finish_reason"]) == ("aaa", "stop")
    texts = [answer["choices"][0]["message"]["content"] for answer in seeded]
    assert texts[0] == texts[1] == texts[2] != texts[3]  # OpenAI's seeds are signed, ours are not
    assert TOKENIZER.decode([68], skip_special_tokens=False) == "a"
    assert by_id["choices"][0]["text"] == ""


async def test_salts_divide_the_cache_and_a_cache_key_does_not():
    prompt = list(range(4, 104))
    async with http_served(says("x")) as worker:

        async def cached_tokens(**fields: Any) -> int:
            usage = (await worker.complete(prompt, **fields)).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        assert await cached_tokens(cache_salt="a") == 0
        assert await cached_tokens() == 0
        assert await cached_tokens(cache_salt="a") == 99
        assert await cached_tokens(prompt_cache_key="k", user="u", store=False, metadata={"a": "b"}) == 99


async def test_the_model_is_listed_and_described():
    async with http_served(says("x"), context_length=77) as worker:
        listed = (await worker.client.get("/v1/models")).json()
        one = (await worker.client.get("/v1/models/tiny")).json()
    assert listed == {"object": "list", "data": [one]}
    assert (one["id"], one["object"], one["max_model_len"]) == ("tiny", "model", 77)


async def test_the_model_has_the_name_that_the_worker_gives_it():
    async with http_served(says("x"), model_name="some 1B") as worker:
        listed = (await worker.client.get("/v1/models")).json()
        answers = [await worker.complete("a", model=name, max_tokens=1) for name in ("some 1B", "tiny")]
    assert [model["id"] for model in listed["data"]] == ["some 1B"]
    assert [answer.status_code for answer in answers] == [200, 404]
    assert answers[0].json()["model"] == "some 1B"
