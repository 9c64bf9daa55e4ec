"""Tiers of a whole worker: from the settings to what a client sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.hand_engine import reference, stream
from support.served_worker import greedy_request, served
from support.tiny_loaded_model import loaded
from support.tiny_model import tiny_decoder

from prefixcache_client import AsyncClient
from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.server.build import assemble_worker

RECORD_BYTES = 2 * 2 * 2 * 16 * 16 * 4
"""Of the tiny model: keys and values, layers, heads, slots, elements, bytes of an element."""
PROMPT = stream("a", 100)
POOL = {"kv_blocks": 8, "kv_headroom": 0.0}


def tiny() -> Any:
    return loaded(tiny_decoder(context_length=512))


def always_restore(worker: Any) -> None:
    """What is measured on a busy machine must not decide a test."""
    worker.worker.engine_loop._engine.cache._tiers._num_worth_restoring = len


@pytest.mark.parametrize("kind", ["memory", "file", "both"])
async def test_a_client_sees_what_came_from_where(kind: str, tmp_path: Path) -> None:
    file = {"tier_file": str(tmp_path / "tier"), "tier_file_size": 20 * RECORD_BYTES}
    settings = {
        "memory": {"tier_memory": 20 * RECORD_BYTES},
        "file": file,
        "both": {"tier_memory": 2 * RECORD_BYTES, **file},
    }[kind]
    async with served(tiny(), **POOL, **settings) as worker:
        always_restore(worker)
        first = await worker.answer(greedy_request(PROMPT, 4))
        await worker.answer(greedy_request(stream("z", 127), 1))
        again = await worker.answer(greedy_request(PROMPT, 4))
        assert first.token_ids == again.token_ids == reference(PROMPT, 4)
        usage = again.completion.usage
        assert (usage.cached_tokens, usage.restored_tokens, usage.computed_tokens) == (96, 96, 4)
        async with AsyncClient(worker.address) as client:
            stats = await client.stats()
        assert stats.tokens.restored == 96
        names = {"memory": ["memory"], "file": ["file"], "both": ["memory", "file"]}[kind]
        assert [tier.name for tier in stats.tiers] == names
        assert [tier.num_blocks for tier in stats.tiers] == [2, 20][-len(names) :] if kind == "both" else [20]
        assert sum(tier.restored for tier in stats.tiers) == 6
        assert sum(tier.stored - tier.restored - tier.evicted - tier.used_blocks for tier in stats.tiers) == 0
        assert list(tmp_path.iterdir()) == []


async def test_without_tiers_there_are_none() -> None:
    async with served(tiny(), **POOL) as worker:
        stats = await worker.stats()
        assert list(stats.tiers) == []
        assert stats.tokens.restored == 0


def test_the_rule_is_measured_for_every_tier(tmp_path: Path) -> None:
    file = {"tier_file": str(tmp_path / "tier"), "tier_file_size": 20 * RECORD_BYTES}
    config = WorkerConfig(kv_blocks=8, tier_memory=3 * RECORD_BYTES + 5, **file)
    cache = assemble_worker(tiny(), config).engine_loop._engine.cache
    assert [(stats.name, stats.num_blocks) for stats in cache.stats().tiers] == [("memory", 3), ("file", 20)]
    rule = cache._tiers._num_worth_restoring
    assert len(rule.copy_seconds) == 2
    assert all(seconds > 0 for seconds in (*rule.copy_seconds, rule.compute_seconds))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tier_file": "x"}, "--tier-file: .*; give --tier-file-size too"),
        ({"tier_file_size": 1 << 20}, "--tier-file-size: .*; give --tier-file too"),
        ({"tier_memory": 100}, "--tier-memory: 100B is less than one block of 8KiB; give more"),
        (
            {"tier_memory": 1 << 60},
            "--tier-memory: .* is more than the .* that the KV pool leaves",
        ),
        ({"tier_memory": 1 << 20, "scheme": "paged"}, "--scheme paged: .*drop --tier-memory and --tier-file"),
    ],
)
def test_settings_that_make_no_tier_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        assemble_worker(tiny(), WorkerConfig(kv_blocks=8, **settings))
