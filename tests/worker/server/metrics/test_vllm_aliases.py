"""vLLM's names, with vLLM's semantics."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from support.hand_engine import stream
from support.metrics_page import busy_worker
from support.served_worker import ServedWorker, greedy_request

from prefixcache.v1 import inference_pb2 as pb


async def aliases(worker: ServedWorker) -> dict[tuple[str, ...], float]:
    """(sample's name without the prefix, values of labels that are not on all) -> value."""
    page = await worker.worker.metrics.page()
    values = {}
    for family in text_string_to_metric_families(page.body.decode()):
        for sample in family.samples:
            if sample.name.startswith("vllm:"):
                labels = dict(sample.labels)
                assert (labels.pop("model_name"), labels.pop("engine")) == ("tiny", "0")
                values[sample.name.removeprefix("vllm:"), *labels.values()] = sample.value
    return values


async def test_what_a_router_scrapes():
    async with busy_worker(metrics_aliases="vllm") as worker:
        values, stats = await aliases(worker), await worker.stats()
        tokens, blocks = stats.tokens, stats.blocks
        assert values["num_requests_running",] == values["num_requests_waiting",] == 0
        assert values["kv_cache_usage_perc",] == 0
        assert values["cache_config_info", str(blocks.block_size), str(blocks.total)] == 1
        assert values["prefix_cache_queries_total",] == values["prompt_tokens_total",] == tokens.prompt == 300
        assert values["prefix_cache_hits_total",] == values["prompt_tokens_cached_total",] == 99
        by_source = {
            source: values["prompt_tokens_by_source_total", source]
            for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
        }
        assert by_source == {"local_compute": 201, "local_cache_hit": 99, "external_kv_transfer": 0}
        assert values["generation_tokens_total",] == 12
        assert values["num_preemptions_total",] == 0
        for name in (
            "time_to_first_token",
            "e2e_request_latency",
            "request_queue_time",
            "request_decode_time",
        ):
            assert values[f"{name}_seconds_count",] == 3
        assert values["inter_token_latency_seconds_count",] == 9
        prefill, decode, total = (
            values[f"{name}_seconds_sum",]
            for name in ("request_prefill_time", "request_decode_time", "time_to_first_token")
        )
        assert prefill != decode
        assert prefill <= total, "of it, what was waited for in the queue is left out"
        assert values["request_success_total",] == 3
        assert values["iteration_tokens_total_sum",] == 201 + 9


async def test_what_came_back_from_a_tier_is_no_hit_of_the_pool():
    async with busy_worker(metrics_aliases="vllm", num_rounds=2) as worker:
        values, tokens = await aliases(worker), (await worker.stats()).tokens
    assert tokens.restored > 0, "the prompts of the second round were evicted to the tier by the first"
    assert values["prompt_tokens_by_source_total", "external_kv_transfer"] == tokens.restored
    assert values["prompt_tokens_by_source_total", "local_cache_hit"] == tokens.cached - tokens.restored
    assert values["prompt_tokens_by_source_total", "local_compute"] == tokens.computed


async def test_b137_who_bypasses_the_cache_asks_nothing_of_it():
    async with busy_worker(metrics_aliases="vllm", num_rounds=0) as worker:
        fresh = await aliases(worker)
        assert fresh["prefix_cache_queries_total",] == fresh["prefix_cache_hits_total",] == 0
        off = pb.CacheOptions(mode=pb.CacheOptions.MODE_OFF)
        for _ in range(5):
            await worker.answer(greedy_request(stream("a", 40), 1, cache=off))
            async for _ in worker.generate(greedy_request(stream("a", 40), 1, prompt_logprobs=1)):
                pass
        page = (await worker.worker.metrics.page()).body.decode().splitlines()
        values = await aliases(worker)
    assert values["prefix_cache_queries_total",] == values["prefix_cache_hits_total",] == 0
    assert "prefixcache_bypassed_requests_total 10.0" in page
    assert "prefixcache_cache_queried_tokens_total 0.0" in page
    assert 'prefixcache_prompt_tokens_total{source="computed"} 400.0' in page
    assert not [line for line in page if line.startswith("prefixcache_cache_hit_ratio")]
