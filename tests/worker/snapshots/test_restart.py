"""A worker that stops, and one that comes back from its snapshot, over gRPC."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import stat
from errno import ENOSPC
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.damage import each_damage
from support.hand_engine import reference, stream
from support.served_worker import DEADLINE_SECONDS, ServedWorker, greedy_request, served
from support.tiny_loaded_model import loaded
from support.tiny_model import tiny_decoder

from prefixcache.v1 import cache_pb2, inference_pb2
from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.loader import LoadedModel
from prefixcache_worker.server.access.access import OpenAccess
from prefixcache_worker.server.access.caller import Caller, Role
from prefixcache_worker.server.build import assemble_worker
from prefixcache_worker.snapshots.cache_snapshots import CacheSnapshots
from prefixcache_worker.snapshots.snapshot_folder import SnapshotFolder

PROMPT = stream("a", 64)
OTHER_PROMPT = stream("b", 64)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return loaded(tiny_decoder())


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "snapshots")


async def cached_tokens(worker: ServedWorker, prompt: list[int], **call: Any) -> int:
    """How much of a prompt is found. The answer is the same however much it is."""
    answer = await worker.answer(greedy_request([*prompt, 9], 4), **call)
    assert answer.token_ids == reference([*prompt, 9], 4)
    return int(answer.completion.usage.cached_tokens)


async def save(worker: ServedWorker) -> cache_pb2.SnapshotResponse:
    return await worker.cache.Snapshot(cache_pb2.SnapshotRequest(), timeout=DEADLINE_SECONDS)


async def restore(worker: ServedWorker) -> int:
    response = await worker.cache.Restore(cache_pb2.RestoreRequest(), timeout=DEADLINE_SECONDS)
    return int(response.num_blocks)


async def reset(worker: ServedWorker) -> None:
    await worker.worker.engine_loop.call(lambda engine: engine.cache.reset())  # type: ignore[attr-defined]


async def refused(call: Any) -> str:
    """The sentence of a call that the worker is in no state for."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    return str(caught.value.details())


async def test_a_graceful_stop_keeps_every_prefix_for_its_owner(model: LoadedModel, folder: str):
    async with served(model, snapshot=folder) as worker:
        for tenant in ("one", "two"):
            assert await cached_tokens(worker, PROMPT, tenant=tenant) == 0
        assert await cached_tokens(worker, PROMPT, tenant="one") == 64
        before = await worker.stats()
    async with served(model, snapshot=folder) as worker:
        after = await worker.stats()
        assert after.blocks.idle == before.blocks.idle
        for tenant in ("one", "two"):
            assert await cached_tokens(worker, PROMPT, tenant=tenant) == 64
        assert await cached_tokens(worker, PROMPT, tenant="three") == 0
        await worker.worker.engine_loop.call(lambda engine: engine.check())


async def test_a_worker_that_does_not_stop_well_comes_back_as_it_was_saved(model: LoadedModel, folder: str):
    async with served(model, snapshot=folder, snapshot_stop_seconds=0) as worker:
        await cached_tokens(worker, PROMPT)
        saved = await save(worker)
        path = Path(folder) / "cache.snapshot"
        stats = await worker.stats()
        assert (saved.num_blocks, saved.num_bytes) == (stats.blocks.idle, path.stat().st_size)
        assert saved.seconds > 0
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        await cached_tokens(worker, OTHER_PROMPT)
    async with served(model, snapshot=folder) as worker:
        assert await cached_tokens(worker, PROMPT) == 64
        assert await cached_tokens(worker, OTHER_PROMPT) == 0


async def test_a_snapshot_is_taken_from_time_to_time(model: LoadedModel, folder: str):
    path = Path(folder) / "cache.snapshot"
    async with served(model, snapshot=folder, snapshot_seconds=1, snapshot_stop_seconds=0) as worker:
        await cached_tokens(worker, PROMPT)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not path.exists():
                await worker.health()
    async with served(model, snapshot=folder) as worker:
        assert await cached_tokens(worker, PROMPT) == 64


async def test_b86_restore_fills_an_empty_cache_and_no_other(model: LoadedModel, folder: str):
    async with served(model, snapshot=folder) as worker:
        assert await refused(restore(worker)) == "nothing has been saved yet"
        await cached_tokens(worker, PROMPT)
        saved = await save(worker)
        message = await refused(restore(worker))
        assert "goes into an empty one; call Reset before" in message
        await reset(worker)
        assert await restore(worker) == saved.num_blocks
        assert await cached_tokens(worker, PROMPT) == 64


async def test_without_a_folder_there_are_no_snapshots(model: LoadedModel):
    async with served(model) as worker:
        for call in (save(worker), restore(worker)):
            assert await refused(call) == (
                "the worker has no place for snapshots; start it with --snapshot FOLDER"
            )


async def test_only_an_admin_may_save_and_restore(
    model: LoadedModel, folder: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        OpenAccess, "caller", lambda *_: Caller(tenant="default", role=Role.PUBLISHER), raising=True
    )
    async with served(model, snapshot=folder) as worker:
        for call in (save(worker), restore(worker)):
            with pytest.raises(grpc.aio.AioRpcError, match="needs the role admin"):
                await call


@pytest.mark.parametrize(
    ("seed", "settings", "reason"),
    [
        (1, {"kv_dtype": "fp16"}, "dtype"),
        (1, {"kv_dtype": "int8"}, "dtype"),
        (1, {"block_size": 32}, "block_size"),
        (1, {"window": 32}, "model"),
        (1, {"top_k_blocks": 4}, "model"),
        (1, {"attention": "torch"}, "model"),
        (2, {}, "model"),
    ],
)
async def test_b18_what_does_not_fit_is_left_and_the_worker_starts_empty(
    folder: str, caplog: pytest.LogCaptureFixture, seed: int, settings: dict[str, Any], reason: str
):
    async with served(built(1), snapshot=folder) as worker:
        await worker.answer(greedy_request(PROMPT, 4))
    async with served(built(seed), snapshot=folder, **settings) as worker:
        assert (await worker.stats()).blocks.idle == 0
        answer = await worker.answer(greedy_request(PROMPT, 4))
        assert answer.completion.usage.cached_tokens == 0
        message = await refused(restore_after_reset(worker))
    warnings = [record.getMessage() for record in caplog.records if "empty cache" in record.getMessage()]
    assert len(warnings) == 1
    assert f"starting with an empty cache: the snapshot's {reason} is " in warnings[0]
    assert f"the snapshot's {reason} is " in message


async def restore_after_reset(worker: ServedWorker) -> int:
    await reset(worker)
    return await restore(worker)


def built(seed: int) -> LoadedModel:
    """A model of weights of its own."""
    model = loaded(tiny_decoder(seed))
    return type(model)(**{field: getattr(model, field) for field in model.__slots__} | {"build": f"b{seed}"})


async def test_kept_prefixes_come_back_under_their_ids(model: LoadedModel, folder: str):
    async with served(model, snapshot=folder) as worker:
        for label, ttl_seconds in (("policy", 1000.0), ("manual", 2000.0)):
            prompt = PROMPT if label == "policy" else OTHER_PROMPT
            await create_prefix(worker, prompt, label=label, ttl_seconds=ttl_seconds)
        before = await prefixes_of(worker)
    async with served(model, snapshot=folder) as worker:
        after = await prefixes_of(worker)
        for prefix in (*before, *after):
            prefix.seconds_left = round(prefix.seconds_left, -2)
        assert [prefix.label for prefix in before] == ["policy", "manual"]
        assert after == before
        answer = await worker.answer(greedy_request([9], 4, prefix_id=after[0].prefix_id))
        assert answer.completion.usage.cached_tokens == 64
        assert answer.token_ids == reference([*PROMPT, 9], 4)
        await worker.worker.engine_loop.call(lambda engine: engine.check())


async def test_a_prefix_that_was_only_renamed_is_saved_too(model: LoadedModel, folder: str):
    async with served(model, snapshot=folder) as worker:
        await create_prefix(worker, PROMPT, label="old", ttl_seconds=1000.0)
        await save(worker)
        (prefix,) = await prefixes_of(worker)
        request = cache_pb2.UpdatePrefixRequest(prefix_id=prefix.prefix_id, label="new")
        await worker.cache.UpdatePrefix(request, timeout=DEADLINE_SECONDS)
    async with served(model, snapshot=folder) as worker:
        assert [prefix.label for prefix in await prefixes_of(worker)] == ["new"]


async def create_prefix(worker: ServedWorker, prompt: list[int], **fields: Any) -> None:
    tokens = inference_pb2.TokenIds(ids=prompt)
    request = cache_pb2.CreatePrefixRequest(token_ids=tokens, **fields)
    await worker.cache.CreatePrefix(request, timeout=DEADLINE_SECONDS)


async def prefixes_of(worker: ServedWorker) -> list[cache_pb2.Prefix]:
    response = await worker.cache.ListPrefixes(cache_pb2.ListPrefixesRequest(), timeout=DEADLINE_SECONDS)
    return list(response.prefixes)


async def test_another_layout_of_the_pool_takes_the_same_snapshot(model: LoadedModel, folder: str):
    async with served(model, snapshot=folder) as worker:
        await cached_tokens(worker, PROMPT)
    async with served(model, snapshot=folder, kv_layout="head-first") as worker:
        assert await cached_tokens(worker, PROMPT) == 64


async def test_a_smaller_pool_takes_what_was_used_last(model: LoadedModel, folder: str):
    async with served(model, snapshot=folder) as worker:
        for prompt in (PROMPT, OTHER_PROMPT):
            await cached_tokens(worker, prompt)
    async with served(model, snapshot=folder, kv_blocks=6, kv_headroom=0) as worker:
        assert (await worker.stats()).blocks.free == 0
        assert await cached_tokens(worker, OTHER_PROMPT) == 64


def test_b21_no_damage_keeps_a_worker_from_starting_or_is_restored(
    folder: str, caplog: pytest.LogCaptureFixture
):
    """Every byte of the file once, and every length."""
    config = WorkerConfig(kv_blocks=4, block_size=2, snapshot=folder, attention="torch")
    small = loaded(tiny_decoder(num_layers=1, num_query_heads=1, num_kv_heads=1, head_dim=2))
    worker = assemble_worker(small, config)
    assert worker.snapshots is not None
    snapshots = snapshots_of(worker)
    cache = snapshots._cache
    handle = cache.acquire([4, 5, 6], Caller(tenant="t", role=Role.USER).namespace("b"))
    cache.publish(handle, 3, include_tail=True)
    cache.release(handle)
    saved = snapshots.write(snapshots.begin(), lambda: None)  # type: ignore[arg-type]
    assert saved.num_blocks == 2
    cache.reset()
    caplog.clear()
    num_damages = 0
    for _ in each_damage(snapshots.folder.path):
        num_damages += 1
        snapshots.restore_at_start()
        assert cache.stats().num_free == cache.num_blocks
    messages = {record.getMessage().partition(":")[0] for record in caplog.records}
    assert messages == {"starting with an empty cache"}
    assert len(caplog.records) == num_damages == 2 * saved.num_bytes
    snapshots.folder.close()


def snapshots_of(worker: Any) -> CacheSnapshots:
    snapshots = worker.snapshots._snapshots
    assert isinstance(snapshots, CacheSnapshots)
    return snapshots


async def test_a_full_disk_is_warned_of_once_and_the_service_goes_on(
    model: LoadedModel, folder: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level(logging.INFO, "prefixcache_worker.snapshots")

    def full(descriptor: int) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    async with served(model, snapshot=folder) as worker:
        await cached_tokens(worker, PROMPT)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            for _ in range(2):
                assert await refused(save(worker)) == "cannot save the snapshot: No space left on device"
        assert await cached_tokens(worker, PROMPT) == 64
        assert os.listdir(folder) == []
        await save(worker)
    messages = [record.getMessage() for record in caplog.records]
    assert sum("No space left on device" in message for message in messages) == 1
    assert "snapshots are saved again" in messages


async def test_leftovers_of_a_killed_save_are_gone_after_the_start(model: LoadedModel, folder: str):
    os.mkdir(folder)
    left = Path(folder) / f".cache.snapshot.{'0f' * 8}.partial"
    left.write_bytes(b"half a snapshot")
    async with served(model, snapshot=folder):
        assert not left.exists()


def test_two_workers_do_not_share_a_folder(model: LoadedModel, folder: str):
    taken = SnapshotFolder(folder)
    with pytest.raises(ConfigError, match="another worker uses"):
        assemble_worker(model, WorkerConfig(kv_blocks=4, snapshot=folder))
    taken.close()


@pytest.mark.parametrize("scheme", ["paged", "contiguous"])
def test_a_scheme_that_keeps_nothing_has_nothing_to_save(model: LoadedModel, folder: str, scheme: str):
    with pytest.raises(ConfigError, match="--snapshot: this --scheme keeps nothing"):
        assemble_worker(model, WorkerConfig(kv_blocks=4, snapshot=folder, scheme=scheme))


async def test_what_is_saved_while_blocks_come_and_go_is_right(model: LoadedModel, folder: str):
    """A pool of a few prompts with a tier behind it, and one save after the other beside the requests."""
    settings = {"snapshot": folder, "kv_blocks": 14, "kv_headroom": 0, "tier_memory": 400_000}
    prompts = [stream(letter, 48) for letter in "abcde"]
    async with served(model, **settings) as worker:
        saves = [asyncio.create_task(save(worker))]
        for number, prompt in enumerate(itertools.cycle(prompts)):
            if number >= 2 * len(prompts) and len(saves) > 3:
                break
            await cached_tokens(worker, prompt)
            if saves[-1].done():
                saves.append(asyncio.create_task(save(worker)))
        await asyncio.gather(*saves)
        stats = await worker.stats()
        assert stats.blocks.evicted > 0
        assert stats.tiers[0].stored > 0
    async with served(model, **settings) as worker:
        assert (await worker.stats()).blocks.idle == stats.blocks.idle
        for prompt in prompts:
            await cached_tokens(worker, prompt)
        await worker.worker.engine_loop.call(lambda engine: engine.check())


async def test_a_save_may_ask_at_any_moment_whether_requests_run(
    folder: str, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
):
    """Its thread asks while the engine's is in the middle of ending them."""
    async with served(model, snapshot=folder) as worker:
        snapshots = worker.worker.snapshots._snapshots  # type: ignore[union-attr]
        engine = snapshots._engine
        keep, asked = engine.prefixes.keep, []

        def keep_and_ask(order: Any) -> Any:
            assert [answer.sequences for answer in engine._answers.values()] == [[]]
            asked.append(snapshots.is_engine_busy)
            return keep(order)

        monkeypatch.setattr(engine.prefixes, "keep", keep_and_ask)
        text = inference_pb2.TokenIds(ids=PROMPT)
        await worker.cache.CreatePrefix(
            cache_pb2.CreatePrefixRequest(token_ids=text), timeout=DEADLINE_SECONDS
        )
    assert asked == [True]
