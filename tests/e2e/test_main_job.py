"""The main job on the default model: real process, real gRPC, several tenants over one system prompt."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from prefixcache_client import Client, Completion, Delta, FinishReason
from prefixcache_client.worker_process import WorkerProcess

SYSTEM = " ".join(
    f"Rule {i}: a passenger of class {i} may change a booking {i} hours before departure for {i} euros."
    for i in range(1, 25)
)
BLOCK_SIZE = 16


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with WorkerProcess("--trust-tenant-header", "--kv-blocks", "600", "--max-batch-tokens", "256") as worker:
        yield worker.wait_ready(timeout_seconds=240)


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, tenant="acme", deadline=120) as client:
        yield client


def ask(address: str, tenant: str, question: str, *, system: str = SYSTEM, max_tokens: int = 8):
    with Client(address, tenant=tenant, deadline=120) as client:
        return client.chat(
            question, system=system, public_messages=1, temperature=0, max_tokens=max_tokens, ignore_eos=True
        )


def test_the_real_model_answers(client):
    answer = client.chat("What is the capital of France?", temperature=0, max_tokens=16)
    assert "Paris" in answer.text
    assert answer.choices[0].finish_reason is FinishReason.STOP


def test_four_tenants_hold_one_system_prompt(address, client):
    """Everybody reads the public prompt from the cache; blocks in use show that it is held once."""
    turns = [{"role": "system", "content": SYSTEM}]
    num_system_tokens = len(client.tokenize(turns)) - 3  # without the assistant turn that the template opens
    num_shared = num_system_tokens // BLOCK_SIZE * BLOCK_SIZE
    ask(address, "first", "Hello?")
    client.stats(reset_peaks=True)
    questions = [f"May I change a booking of class {i}?" for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda i: ask(address, f"tenant-{i % 4}", questions[i], max_tokens=24), range(8))
        )
    for answer in answers:
        usage = answer.usage
        assert usage.cached_tokens >= num_shared
        assert usage.cached_tokens + usage.computed_tokens == usage.prompt_tokens
        assert usage.completion_tokens == 24
    blocks = client.stats().blocks
    num_own = max(-(-(a.usage.prompt_tokens + 24 - num_shared) // BLOCK_SIZE) for a in answers)
    assert blocks.peak_live <= num_shared // BLOCK_SIZE + 8 * num_own
    assert blocks.peak_live_unshared > 4 * blocks.peak_live
    assert blocks.live == 0


def test_what_is_private_is_found_by_its_own_tenant_only(address, client):
    prompt = client.tokenize("The secret launch code of the rocket is 4711 and nobody else may know. " * 4)
    for tenant, expected in [
        ("owner", 0),
        ("owner", len(prompt) - 1),
        ("other", 0),
        ("owner", len(prompt) - 1),
    ]:
        with Client(address, tenant=tenant) as own:
            assert own.generate(prompt, max_tokens=1, temperature=0).usage.cached_tokens == expected
    with Client(address, tenant="other") as other:
        assert not any("launch code" in node.preview for node in other.tree().nodes if node.tenant == "owner")


def test_warm_and_cold_answers_are_equal(address):
    cold = ask(
        address, "repeat", "Which rules apply to class seven?", system=SYSTEM + " Be brief.", max_tokens=24
    )
    warm = ask(
        address, "repeat", "Which rules apply to class seven?", system=SYSTEM + " Be brief.", max_tokens=24
    )
    assert warm.usage.cached_tokens == warm.usage.prompt_tokens - 1
    assert warm.choices == cold.choices


def test_the_stream_joined_is_the_whole_answer(client):
    options = {"temperature": 0.0, "max_tokens": 20}
    whole = client.generate("Once upon a time", **options)
    events = list(client.stream("Once upon a time", **options))
    deltas = [event for event in events if isinstance(event, Delta)]
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + [FinishReason.LENGTH]
    assert isinstance(events[-1], Completion)
    assert sum(isinstance(event, Completion) for event in events) == 1


def test_text_ids_and_chat_are_the_same_prompt(client):
    by_text = client.generate("Once upon a time", temperature=0, max_tokens=6)
    by_ids = client.generate(client.tokenize("Once upon a time"), temperature=0, max_tokens=6)
    assert by_ids.choices == by_text.choices
    turns = [{"role": "user", "content": "Name a colour."}]
    assert (
        client.generate(turns, temperature=0, max_tokens=6).choices
        == client.generate(client.tokenize(turns), temperature=0, max_tokens=6).choices
    )


@pytest.mark.parametrize(
    "prompt", ["One, two, three, four,", [{"role": "user", "content": "Count from one to twenty in words."}]]
)
def test_b103_a_stop_text_ends_the_answer_before_it(client, prompt):
    """The same text for a text and a chat, streamed and whole."""
    whole = client.generate(prompt, temperature=0, max_tokens=24).text
    stop = whole[8:14]
    answer = client.generate(prompt, temperature=0, max_tokens=24, stop=[stop])
    assert answer.text == whole[: whole.index(stop)] != ""
    assert answer.choices[0].finish_reason is FinishReason.STOP
    streamed = client.stream(prompt, temperature=0, max_tokens=24, stop=[stop])
    assert "".join(event.text for event in streamed if isinstance(event, Delta)) == answer.text


def test_log_probabilities_of_prompt_and_answer(client):
    token_ids = client.tokenize("The capital of France is Paris")
    options = {"temperature": 0, "max_tokens": 6, "logprobs": 2, "prompt_logprobs": 1, "ignore_eos": True}
    answers = [client.generate(token_ids, **options) for _ in range(2)]
    assert [answer.usage.cached_tokens for answer in answers] == [0, 0]
    assert answers[0].choices == answers[1].choices
    first, *scores = answers[0].prompt_logprobs
    assert first is None
    assert len(scores) == len(token_ids) - 1
    assert scores[-1].top_token_ids == token_ids[-1:]  # Paris
    assert scores[-1].logprob == scores[-1].top_logprobs[0] > -1
    [choice] = answers[0].choices
    assert tuple(score.top_token_ids[0] for score in choice.logprobs) == choice.token_ids
    assert all(sum(map(math.exp, score.top_logprobs)) <= 1 for score in choice.logprobs)


def test_a_penalty_and_a_bias_change_what_the_model_says(client):
    options = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    plain = client.generate("ha ha ha ha ha", **options).choices[0]
    penalised = client.generate("ha ha ha ha ha", repetition_penalty=2.0, frequency_penalty=2.0, **options)
    assert len(set(penalised.choices[0].token_ids)) > len(set(plain.token_ids))
    [word] = set(client.generate("ha", logit_bias={plain.token_ids[0]: 100}, **options).choices[0].token_ids)
    assert word == plain.token_ids[0]
    ended = client.generate("ha ha ha ha ha", stop_token_ids=[word], min_tokens=3, **options).choices[0]
    assert (word in ended.token_ids[:3], ended.stop_reason) in [(False, word), (False, None)]


def test_several_choices_differ_and_repeat(client):
    options = {"n": 4, "temperature": 1.5, "seed": 3, "max_tokens": 12, "ignore_eos": True}
    answer = client.generate("Once upon a time", **options)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.token_ids for choice in answer.choices}) == 4
    again = client.generate("Once upon a time", **options)
    assert again.choices == answer.choices
    assert answer.usage.completion_tokens == 48


def test_the_tree_shows_public_text_to_everybody(address, client):
    ask(address, "somebody", "Hello?")
    assert any("Rule 1" in node.preview for node in client.tree().nodes if node.public)


def test_health_and_reflection(address, client):
    assert client.health()
    with grpc.insecure_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (response,) = stub.ServerReflectionInfo(iter([request]))
    names = {service.name for service in response.list_services_response.service}
    assert {
        "prefixcache.v1.InferenceService",
        "prefixcache.v1.CacheService",
        "grpc.health.v1.Health",
    } <= names
