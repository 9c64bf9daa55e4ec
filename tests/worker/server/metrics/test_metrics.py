"""The page that Prometheus reads, of a worker that serves."""

from __future__ import annotations

import asyncio
import itertools
import math
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.hand_engine import stream
from support.served_worker import DEADLINE_SECONDS, GatedModel, ServedWorker, greedy_request, served
from support.tiny_loaded_model import loaded
from support.tiny_model import tiny_decoder

from prefixcache.v1 import inference_pb2 as pb
from prefixcache_worker.errors import EngineStoppedError

PROMPT = stream("a", 40)


async def scraped(worker: ServedWorker) -> dict[tuple[str, ...], float]:
    """(sample's name, its labels' values) -> value."""
    page = await worker.worker.metrics.page()
    assert page.content_type.startswith("text/plain")
    families = list(text_string_to_metric_families(page.body.decode()))
    assert all(family.name.startswith("prefixcache_") and family.documentation for family in families)
    return {
        (sample.name.removeprefix("prefixcache_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


async def test_the_page_tells_what_the_worker_has_done():
    async with served(loaded(tiny_decoder()), metrics_tenants=0) as worker:
        await worker.answer(greedy_request(PROMPT, 3), tenant="secret-tenant")
        async for _ in worker.generate(greedy_request(PROMPT, 2, n=2), tenant="secret-tenant"):
            pass
        page = await worker.worker.metrics.page()
        values = await scraped(worker)
    assert b"secret-tenant" not in page.body
    assert values["prompt_tokens_total", "cached"] == 39
    assert values["prompt_tokens_total", "computed"] == 41
    assert values["generated_tokens_total",] == 7
    assert values["requests_total", "finished"] == values["request_seconds_count", "finished"] == 2
    assert values["requests_total", "failed"] == values["request_seconds_count", "failed"] == 0
    assert values["queue_seconds_count",] == values["time_to_first_token_seconds_count",] == 2
    assert values["inter_token_seconds_count",] == 2 + 1 + 1
    blocks = [values["blocks", state] for state in ("free", "idle", "live")]
    assert sum(blocks) == worker.worker.model.num_blocks
    assert blocks[2] == values["kv_cache_usage_ratio",] == 0
    assert [values["requests_waiting",], values["requests_running",]] == [0, 0]
    assert ("build_info", "tiny", "tiny-build") in {key[:3] for key in values}
    model = worker.worker.model
    shape = (str(model.block_bytes), str(model.block_size), str(model.num_blocks))
    assert values["cache_config_info", *shape] == 1


async def test_tiers_have_figures_of_their_own():
    async with served(loaded(tiny_decoder()), kv_blocks=8, kv_headroom=0.0, tier_memory=1 << 20) as worker:
        await worker.answer(greedy_request(PROMPT, 1))
        await worker.answer(greedy_request(stream("z", 127), 1))
        stats, values = await worker.stats(), await scraped(worker)
    (tier,) = stats.tiers
    assert tier.stored > 0
    assert values["tier_blocks", "used", "memory"] == tier.used_blocks
    assert values["tier_blocks", "free", "memory"] == tier.num_blocks - tier.used_blocks
    moved = [values["tier_blocks_moved_total", "memory", way] for way in ("stored", "restored", "evicted")]
    assert moved == [tier.stored, tier.restored, tier.evicted]
    assert values["restored_tokens_total",] == stats.tokens.restored


async def test_gauges_show_the_moment():
    model = GatedModel(tiny_decoder())
    async with served(loaded(model)) as worker:
        call = worker.generate(greedy_request(PROMPT, 4))
        model.allow(1)
        await call.read()
        await model.begin(2)
        model.allow(1)  # the page is read between two steps
        values = await scraped(worker)
        model.allow(2)
        assert [values["requests_running",], values["blocks", "live"]] == [1, 3]
        assert values["kv_cache_usage_ratio",] == 3 / worker.worker.model.num_blocks
        call.cancel()


async def answered(worker: ServedWorker, message: pb.GenerateRequest) -> None:
    """Without a deadline of gRPC's, which is a time of day."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert [response async for response in worker.inference.Generate(message)]


async def test_b134_latencies_do_not_know_the_time_of_day(monkeypatch: pytest.MonkeyPatch):
    jumps = itertools.cycle((-3600.0, 3600.0, 0.0))
    true_time = time.time
    began = time.monotonic()
    async with served(loaded(tiny_decoder())) as worker:
        monkeypatch.setattr(time, "time", lambda: true_time() + next(jumps))
        sums: list[float] = []
        for _ in range(3):
            await answered(worker, greedy_request(PROMPT, 4))
            chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="hi")])
            stop = pb.StopConditions(max_tokens=4, ignore_eos=True)
            await answered(worker, pb.GenerateRequest(chat=chat, stop_conditions=stop))
            values = await scraped(worker)
            sums.append(values["request_seconds_sum", "finished"])
        passed = time.monotonic() - began
    assert sums == sorted(sums)
    for name in ("queue", "time_to_first_token", "inter_token"):
        assert 0 <= values[f"{name}_seconds_sum",] <= passed
        assert values[f"{name}_seconds_bucket", "+Inf"] == values[f"{name}_seconds_count",]
    assert 0 < sums[-1] <= passed
    assert not any(math.isnan(value) for value in values.values())


async def test_there_is_no_page_when_the_engine_has_stopped():
    async with served(loaded(tiny_decoder())) as worker:
        await worker.service.stop(drain_seconds=0)
        with pytest.raises(EngineStoppedError):
            await worker.worker.metrics.page()


async def test_answers_are_counted_by_their_status():
    async with served(loaded(tiny_decoder())) as worker:
        await worker.answer(greedy_request(PROMPT, 2))
        await worker.answer(greedy_request(PROMPT, 2))
        await worker.refusal(greedy_request([], 2))
        values = await scraped(worker)
    assert {key: value for key, value in values.items() if key[0] == "answers_total"} == {
        ("answers_total", "OK", "Generate"): 2,
        ("answers_total", "INVALID_ARGUMENT", "Generate"): 1,
    }
