"""Kept prefixes and usage: both clients, and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_worker import FakeWorker

from prefixcache.v1 import cache_pb2
from prefixcache_client import AsyncClient, Client, NotFoundError, Prefix, TenantUsage, Usage

Run = Callable[..., int]

FIRST = Prefix(
    prefix_id="p1",
    tenant="acme",
    label="policy",
    num_tokens=10,
    num_kept_tokens=8,
    num_blocks=2,
    public=False,
    ttl_seconds=60,
    seconds_left=60,
    num_uses=0,
)


def test_a_client_makes_changes_and_deletes_prefixes(worker: FakeWorker) -> None:
    with Client(worker.address, tenant="acme") as client:
        created = client.create_prefix("Be kind.", ttl_seconds=60, label="policy", salt="s")
        assert created.prefix == FIRST
        assert created.usage == Usage(
            prompt_tokens=10, cached_tokens=0, computed_tokens=10, completion_tokens=0, written_tokens=8
        )
        assert (worker.orders[0].text, worker.orders[0].salt) == ("Be kind.", "s")
        client.create_prefix([1, 2, 3], public=True)
        client.create_prefix([{"role": "system", "content": "Be kind."}], ttl_seconds=0)
        assert list(worker.orders[1].token_ids.ids) == [1, 2, 3]
        assert (worker.orders[1].public, worker.orders[1].HasField("ttl_seconds")) == (True, False)
        assert worker.orders[2].HasField("ttl_seconds")
        assert worker.orders[2].chat.messages[0].role == "system"

        assert client.get_prefix("p1") == FIRST
        assert client.update_prefix("p1", label="").label == ""
        assert client.update_prefix("p1", ttl_seconds=5).ttl_seconds == 5
        assert [prefix.prefix_id for prefix in client.list_prefixes()] == ["p1", "p2", "p3"]
        assert [prefix.prefix_id for prefix in client.list_prefixes(page_size=1)] == ["p1", "p2", "p3"]
        client.delete_prefix("p2")
        assert [prefix.prefix_id for prefix in client.list_prefixes()] == ["p1", "p3"]
        with pytest.raises(NotFoundError, match="there is no prefix 'p2'"):
            client.get_prefix("p2")


async def test_the_async_client_does_the_same(worker: FakeWorker) -> None:
    async with AsyncClient(worker.address, tenant="acme") as client:
        for label in ("policy", "b", "c"):
            created = await client.create_prefix("Be kind.", ttl_seconds=60, label=label)
        assert created.prefix.prefix_id == "p3"
        assert await client.get_prefix("p1") == FIRST
        assert (await client.update_prefix("p1", label="z")).label == "z"
        assert [prefix.label async for prefix in client.list_prefixes()] == ["z", "b", "c"]
        await client.delete_prefix("p1")
        assert [prefix.label async for prefix in client.list_prefixes()] == ["b", "c"]
        assert await client.usage() == ()


def test_a_prompt_names_its_prefix_and_what_becomes_of_it(worker: FakeWorker) -> None:
    with Client(worker.address) as client:
        client.generate("hi", prefix="p1", cache_priority=3, cache_priority_seconds=1.5)
        client.generate("hi")
        with pytest.raises(TypeError, match="cache_priority"):
            client.generate("hi", cache_priority="high")  # type: ignore[typeddict-item]
    given, absent = worker.requests
    assert (given.prefix_id, given.cache.priority, given.cache.priority_seconds) == ("p1", 3, 1.5)
    assert absent.prefix_id == ""
    assert not absent.cache.HasField("priority")
    assert not absent.cache.HasField("priority_seconds")


def test_usage_is_the_tenant_s_own_or_what_an_admin_asks_for(worker: FakeWorker) -> None:
    worker.usages = [
        cache_pb2.TenantUsage(tenant="acme", prompt_tokens=10, cached_tokens=4, block_seconds=0.5),
        cache_pb2.TenantUsage(tenant="other", ceiling_blocks=0),
    ]
    with Client(worker.address, tenant="acme") as client:
        (own,) = client.usage()
        assert isinstance(own, TenantUsage)
        assert (own.prompt_tokens, own.cached_tokens, own.block_seconds) == (10, 4, 0.5)
        assert own.ceiling_blocks is None
        (other,) = client.usage(tenant="other")
        assert other.ceiling_blocks == 0
        assert len(client.usage(all_tenants=True)) == 2


def test_the_command_line_makes_and_shows_prefixes(
    run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "prefix.json"
    assert run("prefix", "create", "--system", "--ttl", "60", "--label", "policy", stdin="Be kind.") == 0
    assert capsys.readouterr().out == "p1: 8 tokens kept, 10 tokens computed\n"
    assert worker.orders[0].chat.messages[0].content == "Be kind."
    assert run("prefix", "create", "hi", "--public", "--salt", "s", "--json", str(path)) == 0
    assert json.loads(path.read_text())["prefix"]["prefix_id"] == "p2"
    capsys.readouterr()

    assert run("prefix", "list") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["id", "label", "tokens", "kept", "blocks", "uses", "ends", "in"]
    assert lines[1] == ["p1", "policy", "10", "8", "2", "0", "60.00", "s"]
    assert lines[2] == ["p2", "(public)", "10", "8", "2", "0", "never"]

    assert run("prefix", "update", "p1", "--ttl", "5", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["ttl_seconds"] == 5
    assert run("prefix", "show", "p1") == 0
    assert "policy" in capsys.readouterr().out
    assert run("prefix", "delete", "p1") == 0
    assert run("prefix", "show", "p1") == 1
    assert "there is no prefix 'p1'" in capsys.readouterr().err


def test_the_command_line_generates_behind_a_prefix(run: Run, worker: FakeWorker) -> None:
    assert run("generate", "hi", "--prefix", "p7") == 0
    assert worker.requests[0].prefix_id == "p7"


def test_the_command_line_shows_usage(
    run: Run, worker: FakeWorker, capsys: pytest.CaptureFixture[str]
) -> None:
    worker.usages = [
        cache_pb2.TenantUsage(tenant="default", prompt_tokens=1000, block_seconds=2.25),
        cache_pb2.TenantUsage(prompt_tokens=7, ceiling_blocks=9),
    ]
    assert run("usage", "--tenant", "default") == 0
    assert ["prompt", "tokens", "1,000"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert run("usage", "--all") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["default", "(others)"]
    assert ["block", "seconds", "2.2", "0.0"] in lines
    assert ["ceiling", "blocks", "-", "9"] in lines
    assert run("usage", "--of", "default", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)[0]["prompt_tokens"] == 1000
