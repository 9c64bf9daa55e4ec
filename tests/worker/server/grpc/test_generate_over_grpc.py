"""The whole worker over real gRPC: what is answered, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status
from support.hand_engine import reference, stream
from support.served_worker import DEADLINE_SECONDS, GatedModel, ServedWorker, greedy_request, served
from support.tiny_loaded_model import EOS_ID, byte_tokenizer, loaded
from support.tiny_model import tiny_decoder

from prefixcache.v1 import cache_pb2
from prefixcache.v1 import inference_pb2 as pb
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.scripted_model import ScriptedModel
from prefixcache_worker.server.service import Service

GREEDY = pb.SamplingParams(temperature=0)


def tiny(context_length: int = 512) -> Any:
    return loaded(tiny_decoder(context_length=context_length))


def scripted(num_tokens: int = 4096) -> ScriptedModel:
    return ScriptedModel([7] * num_tokens, vocabulary_size=1000, eos_token_id=EOS_ID, context_length=8192)


TURN_OVERHEAD = 18  # tokens: <|turn|>user\n, </s>, <|turn|>assistant\n


def ids_prompt(num_tokens: int) -> dict[str, Any]:
    return {"token_ids": pb.TokenIds(ids=[5] * num_tokens)}


def text_prompt(num_tokens: int) -> dict[str, Any]:
    return {"text": "x" * num_tokens}


def chat_prompt(num_tokens: int) -> dict[str, Any]:
    content = "x" * (num_tokens - TURN_OVERHEAD)
    return {"chat": pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=content)])}


async def clean_refusal(worker: ServedWorker, message: pb.GenerateRequest) -> grpc.aio.AioRpcError:
    """The error a request is answered with, after the proof that it took no block."""
    before = await worker.stats()
    error = await worker.refusal(message)
    after = await worker.stats()
    assert after.blocks == before.blocks
    assert after.tokens == before.tokens
    return error


def violated_field(error: grpc.aio.AioRpcError) -> str:
    """The field that the BadRequest detail names."""
    status = rpc_status.from_call(error)
    assert status is not None
    bad_request = error_details_pb2.BadRequest()
    assert any(detail.Unpack(bad_request) for detail in status.details)
    [violation] = bad_request.field_violations
    return str(violation.field)


def assert_invalid(error: grpc.aio.AioRpcError, field_name: str, *numbers: int) -> None:
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated_field(error) == field_name
    assert all(str(number) in error.details() for number in numbers)


async def test_an_answer_is_the_models_and_its_usage_adds_up():
    prompt = stream("a", 40)
    async with served(tiny()) as worker:
        cold = await worker.answer(greedy_request(prompt, 8, request_id="first"))
        warm = await worker.answer(greedy_request(prompt, 8))

    assert cold.token_ids == warm.token_ids == reference(prompt, 8)
    assert cold.finish_reason == pb.FINISH_REASON_LENGTH
    assert cold.completion.request_id == "first"
    assert cold.completion.usage == pb.Usage(
        prompt_tokens=40,
        cached_tokens=0,
        computed_tokens=40,
        completion_tokens=8,
        written_tokens=47,  # the last token of the answer was never read
        block_seconds=cold.completion.usage.block_seconds,
    )
    assert warm.completion.usage == pb.Usage(
        prompt_tokens=40,
        cached_tokens=39,
        computed_tokens=1,
        completion_tokens=8,
        block_seconds=warm.completion.usage.block_seconds,
    )
    timing = cold.completion.timing
    assert 0 <= timing.queue_seconds <= timing.first_token_seconds <= timing.total_seconds


async def test_text_comes_back_as_text_and_a_stop_text_ends_it():
    tokenizer = byte_tokenizer()
    script = tokenizer.encode("Grüße an alle!", add_special=False)
    model = ScriptedModel(script, vocabulary_size=300, eos_token_id=EOS_ID)
    async with served(loaded(model)) as worker:
        whole = await worker.answer(pb.GenerateRequest(text="Hallo", sampling=GREEDY))
        stopped = await worker.answer(
            pb.GenerateRequest(
                text="Hallo", sampling=GREEDY, stop_conditions=pb.StopConditions(stop=["alle", "!"])
            )
        )
    assert (whole.text, whole.token_ids[-1]) == ("Grüße an alle!", EOS_ID)
    assert whole.finish_reason == stopped.finish_reason == pb.FINISH_REASON_STOP
    assert stopped.text == "Grüße an "


@pytest.mark.parametrize(
    ("script", "text"),
    [("DEFGHIJ", ""), ("DEFGX", "DEFGX"), ("alpha DEFGHIJ omega", "alpha ")],
)
@pytest.mark.parametrize("prompt", [ids_prompt, text_prompt, chat_prompt])
async def test_b103_every_kind_of_prompt_ends_before_the_same_stop_text(
    prompt: Callable[[int], dict[str, Any]], script: str, text: str
):
    model = ScriptedModel(
        byte_tokenizer().encode(script, add_special=False), vocabulary_size=300, eos_token_id=EOS_ID
    )
    stop_conditions = pb.StopConditions(stop=["DEFGHIJ"])
    async with served(loaded(model)) as worker:
        answer = await worker.answer(
            pb.GenerateRequest(**prompt(40), sampling=GREEDY, stop_conditions=stop_conditions)
        )
    assert answer.text == text
    assert answer.finish_reason == pb.FINISH_REASON_STOP


async def test_a_long_text_is_answered_like_a_short_one():
    """Long messages are tokenised in a thread."""
    text = "0123456789" * 700
    async with served(loaded(scripted()), kv_blocks=1024) as worker:
        answer = await worker.answer(pb.GenerateRequest(text=text, sampling=GREEDY))
    assert answer.completion.usage.prompt_tokens == 7000


async def test_tenants_share_public_tokens_and_nothing_else():
    prompt = stream("a", 64)
    public = pb.CacheOptions(public_tokens=32)
    async with served(tiny()) as worker:
        await worker.answer(greedy_request(prompt, 2, cache=public), tenant="one")
        own = await worker.answer(greedy_request(prompt, 2, cache=public), tenant="one")
        other = await worker.answer(greedy_request(prompt, 2, cache=public), tenant="two")
        tree = await worker.cache.DumpTree(
            cache_pb2.DumpTreeRequest(), metadata=[("x-tenant-id", "two")], timeout=DEADLINE_SECONDS
        )
        roots = await worker.cache.DumpTree(cache_pb2.DumpTreeRequest(max_depth=1), timeout=DEADLINE_SECONDS)

    assert own.completion.usage.cached_tokens == 63
    assert other.completion.usage.cached_tokens == 32
    assert {(node.public, node.tenant) for node in tree.nodes if not node.public} == {
        (False, "one"),
        (False, "two"),
    }
    [public_node] = [node for node in tree.nodes if node.public]
    assert (public_node.num_tokens, public_node.num_blocks, public_node.parent_id) == (32, 2, 0)
    expected = byte_tokenizer().decode(prompt[:24], skip_special_tokens=False)
    assert public_node.preview == expected != ""
    assert all(node.preview == "" for node in tree.nodes if node.tenant == "one")
    assert [node.id for node in roots.nodes] == [public_node.id]


async def test_several_choices_end_one_by_one_and_the_completion_is_last():
    async with served(tiny()) as worker:
        responses = [r async for r in worker.generate(greedy_request(stream("b", 20), 5, n=3))]
        alone = await worker.answer(greedy_request(stream("b", 20), 5))
    for index in range(3):
        deltas = [r.delta for r in responses if r.HasField("delta") and r.delta.index == index]
        assert [token for delta in deltas for token in delta.token_ids] == alone.token_ids
        assert [delta.finish_reason for delta in deltas] == [0] * (len(deltas) - 1) + [
            pb.FINISH_REASON_LENGTH
        ]
    assert responses[-1].completion.usage.completion_tokens == 15


async def test_b71_an_empty_prompt_is_refused_and_the_next_request_is_right():
    """A request has one prompt, so there are no batches to refuse in part: each stands for itself."""
    prompt = stream("c", 20)
    async with served(tiny()) as worker:
        assert_invalid(await clean_refusal(worker, pb.GenerateRequest(text="")), "text")
        assert_invalid(await clean_refusal(worker, greedy_request([], 4)), "token_ids")
        assert_invalid(
            await clean_refusal(worker, pb.GenerateRequest(chat=pb.ChatMessages())), "chat.messages"
        )
        assert_invalid(await clean_refusal(worker, pb.GenerateRequest()), "prompt")
        assert (await worker.answer(greedy_request(prompt, 8))).token_ids == reference(prompt, 8)
        first, error, last = await asyncio.gather(
            worker.answer(greedy_request([5, 6], 4)),
            worker.refusal(greedy_request([], 4)),
            worker.answer(greedy_request([7], 4)),
        )
    assert_invalid(error, "token_ids")
    assert (first.token_ids, last.token_ids) == (reference([5, 6], 4), reference([7], 4))


async def test_b71_with_a_bos_an_empty_text_is_one_token_and_works():
    async with served(loaded(tiny_decoder(), add_bos=True)) as worker:
        answer = await worker.answer(pb.GenerateRequest(text="", sampling=GREEDY))
    assert answer.completion.usage.prompt_tokens == 1


@pytest.mark.parametrize("prompt", [ids_prompt, text_prompt, chat_prompt])
async def test_b75_a_prompt_longer_than_the_context_is_refused_with_both_numbers(
    prompt: Callable[[int], dict[str, Any]],
):
    def request(num_tokens: int, max_tokens: int = 1) -> pb.GenerateRequest:
        stop_conditions = pb.StopConditions(max_tokens=max_tokens, ignore_eos=True)
        return pb.GenerateRequest(**prompt(num_tokens), sampling=GREEDY, stop_conditions=stop_conditions)

    [field_name] = prompt(100)
    async with served(tiny(context_length=128)) as worker:
        for max_tokens in (1, 2):  # what goes beyond the context is cut
            answer = await worker.answer(request(127, max_tokens))
            assert answer.completion.usage.prompt_tokens == 127
            assert answer.completion.usage.completion_tokens == 1
            assert answer.finish_reason == pb.FINISH_REASON_LENGTH
        for length in (128, 129):
            assert_invalid(await clean_refusal(worker, request(length)), field_name, length, 128)
        # So long a text is not even tokenised: the number is that of its characters.
        length = 100_000 + TURN_OVERHEAD if field_name == "chat" else 100_000
        assert_invalid(await clean_refusal(worker, request(length)), field_name, 100_000, 128)
        assert (await worker.answer(request(50, 4))).completion.usage.completion_tokens == 4


async def test_b75_a_prompt_that_just_fits_is_answered_like_any_other():
    prompt = stream("d", 127)
    async with served(tiny(context_length=128)) as worker:
        for asked in (1, 2):
            assert (await worker.answer(greedy_request(prompt, asked))).token_ids == reference(prompt, 1)
        await clean_refusal(worker, greedy_request([*prompt, 5], 1))
        assert (await worker.answer(greedy_request(prompt[:50], 4))).token_ids == reference(prompt[:50], 4)


async def test_b46_a_prompt_larger_than_the_pool_is_refused_and_holds_nobody_up():
    a, b, c = stream("a", 200), stream("b", 20), stream("c", 100)
    async with served(tiny(context_length=512), kv_blocks=8, kv_headroom=0.0) as worker:
        error, answer = await asyncio.gather(
            worker.refusal(greedy_request(a, 1)), worker.answer(greedy_request(b, 8))
        )
        assert_invalid(error, "token_ids", 200, 128)
        assert answer.token_ids == reference(b, 8)
        longest = await worker.answer(greedy_request(c, 100))
    assert longest.finish_reason == pb.FINISH_REASON_LENGTH
    assert len(c) + len(longest.token_ids) == 128
    assert longest.token_ids == reference(c, 28)


@pytest.mark.parametrize(
    ("sampling", "field_name"),
    [
        (pb.SamplingParams(temperature=float("nan")), "sampling.temperature"),
        (pb.SamplingParams(temperature=-0.1), "sampling.temperature"),
        (pb.SamplingParams(top_p=float("nan")), "sampling.top_p"),
        (pb.SamplingParams(top_p=-1), "sampling.top_p"),
        (pb.SamplingParams(top_k=-2), "sampling.top_k"),
    ],
)
async def test_bad_sampling_values_are_refused_and_the_next_request_is_right(
    sampling: pb.SamplingParams, field_name: str
):
    prompt = stream("e", 20)
    async with served(tiny()) as worker:
        assert_invalid(await clean_refusal(worker, greedy_request(prompt, 4, sampling=sampling)), field_name)
        assert (await worker.answer(greedy_request(prompt, 4))).token_ids == reference(prompt, 4)


async def test_an_unknown_token_id_is_refused_and_the_last_known_one_is_not():
    async with served(tiny()) as worker:
        assert_invalid(await clean_refusal(worker, greedy_request([5, 1000], 1)), "token_ids.ids[1]", 1000)
        assert (await worker.answer(greedy_request([5, 999], 1))).token_ids == reference([5, 999], 1)


async def test_a_tenant_with_bad_characters_is_refused():
    async with served(tiny()) as worker:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await worker.answer(greedy_request([5], 1), tenant="t" * 129)
    assert_invalid(caught.value, "x-tenant-id")


class BrokenModel(GatedModel):
    """Fails in its first step and works after that."""

    def forward(self, batch: Any, attention: Any) -> Any:
        if not self._permits.acquire(blocking=False):
            self.allow(1000)
            raise RuntimeError("the device is on fire")
        return super().forward(batch, attention)


async def test_a_failed_step_is_internal_and_the_next_request_is_right(caplog: pytest.LogCaptureFixture):
    prompt = stream("a", 20)
    async with served(loaded(BrokenModel(tiny_decoder()))) as worker:
        error = await worker.refusal(greedy_request(prompt, 4))
        assert (await worker.answer(greedy_request(prompt, 4))).token_ids == reference(prompt, 4)
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "fire" not in error.details()
    assert "the device is on fire" in caplog.text


async def test_two_workers_cannot_share_a_port():
    async with served(tiny()) as worker:
        with pytest.raises(ConfigError, match=r"^--address: cannot listen on 127\.0\.0\.1:"):
            Service().bind(worker.address)


async def test_health_and_reflection_know_all_services():
    names = [f"prefixcache.v1.{name}" for name in ("InferenceService", "CacheService", "DiagnosisService")]
    async with served(tiny()) as worker:
        for name in ["", *names]:
            assert await worker.health(name) == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(worker.channel)
        call = stub.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=DEADLINE_SECONDS
        )
        listed = {service.name for service in (await call.read()).list_services_response.service}
    assert listed >= {*names, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


async def test_tokenize_detokenize_and_model_info():
    async with served(tiny(context_length=256)) as worker:
        ids = await worker.inference.Tokenize(pb.TokenizeRequest(text="naïve"), timeout=DEADLINE_SECONDS)
        text = await worker.inference.Detokenize(
            pb.DetokenizeRequest(token_ids=[*ids.token_ids, EOS_ID]), timeout=DEADLINE_SECONDS
        )
        plain = await worker.inference.Detokenize(
            pb.DetokenizeRequest(token_ids=[*ids.token_ids, EOS_ID], skip_special_tokens=True),
            timeout=DEADLINE_SECONDS,
        )
        info = await worker.inference.GetModelInfo(pb.GetModelInfoRequest(), timeout=DEADLINE_SECONDS)
    assert list(ids.token_ids) == byte_tokenizer().encode("naïve", add_special=False)
    assert (text.text, plain.text) == ("naïve</s>", "naïve")
    assert info == pb.GetModelInfoResponse(
        name="tiny",
        build="tiny-build",
        architecture="llama",
        num_layers=2,
        num_query_heads=6,
        num_kv_heads=2,
        head_dim=16,
        vocabulary_size=1000,
        context_length=256,
        block_size=16,
        num_blocks=80,
        block_bytes=2 * 2 * 16 * 2 * 16 * 4,
        device="cpu",
        kv_dtype="fp32",
        eos_token_ids=[EOS_ID],
        has_chat_template=True,
    )


async def test_stats_count_requests_and_peaks_start_anew():
    async with served(tiny()) as worker:
        await worker.answer(greedy_request(stream("a", 40), 8))
        stats = await worker.cache.GetStats(
            cache_pb2.GetStatsRequest(reset_peaks=True), timeout=DEADLINE_SECONDS
        )
        after = await worker.stats()
    assert stats.blocks.free + stats.blocks.idle + stats.blocks.live == stats.blocks.total == 80
    assert (stats.tokens.prompt, stats.tokens.computed, stats.tokens.generated) == (40, 40, 8)
    assert stats.requests.finished == 1
    assert (stats.blocks.peak_live, after.blocks.peak_live) == (3, 0)
