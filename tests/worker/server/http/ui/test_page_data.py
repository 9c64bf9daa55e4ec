"""The JSON behind the live page: what it says, and to whom."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from support.http_worker import HttpWorker, http_served, refusal
from support.named_callers import NamedCallers, caller_headers
from support.served_worker import GatedModel
from support.tiny_loaded_model import loaded

from prefixcache.v1 import cache_pb2, cache_pb2_grpc, diagnosis_pb2
from prefixcache_worker.model.scripted_model import ScriptedModel
from prefixcache_worker.server.access.caller import Role
from prefixcache_worker.server.http.ui.plain import plain

ADMIN = caller_headers("root", Role.ADMIN)
ACME, OTHER = caller_headers("acme"), caller_headers("other")
RULES = "Be brief and exact, and never promise what the tariff does not allow. "


def scripted() -> ScriptedModel:
    return ScriptedModel([50, 51, 52, 53], vocabulary_size=260, eos_token_id=2, context_length=1024)


async def complete(worker: HttpWorker, prompt: str, headers: dict[str, str], **fields: Any) -> None:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 2, "ignore_eos": True} | fields
    response = await worker.client.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text


async def data(worker: HttpWorker, path: str, headers: dict[str, str]) -> Any:
    response = await worker.client.get(f"/ui/data/{path}", headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    return response.json()


async def test_the_page_is_for_everybody_and_its_data_are_not() -> None:
    async with http_served(loaded(scripted()), access=NamedCallers()) as worker:
        page = await worker.client.get("/ui/")
        assert page.status_code == 200
        assert "prefixcache" in page.text
        for path in ("now", "tree"):
            refusal(await worker.client.get(f"/ui/data/{path}"), 401)
        refusal(await worker.client.post("/ui/data/explain", json={"prompt": "hi"}), 401)


async def test_an_admin_sees_the_figures_of_all_and_a_user_its_own() -> None:
    async with http_served(loaded(scripted()), access=NamedCallers()) as worker:
        await complete(worker, RULES, ACME)
        await complete(worker, RULES, ACME)
        await complete(worker, "x" * 40, OTHER)
        to_admin, to_acme = [await data(worker, "now", headers) for headers in (ADMIN, ACME)]
    assert to_admin["caller"] == {"tenant": "root", "role": "admin"}
    assert to_admin["usage"] is None
    stats = to_admin["stats"]
    assert stats["tokens"]["prompt"] == 2 * len(RULES) + 40
    assert stats["tokens"]["cached"] == len(RULES) - 1
    assert stats["requests"]["finished"] == 3
    assert sum(stats["blocks"][state] for state in ("free", "idle", "live")) == stats["blocks"]["total"]
    assert {event["kind"] for event in to_admin["events"]} == {"stored"}
    assert sum(event["num_blocks"] for event in to_admin["events"]) >= len(RULES) // 16 + 2
    assert to_admin["model"]["block_size"] == 16

    assert to_acme["caller"] == {"tenant": "acme", "role": "user"}
    assert (to_acme["stats"], to_acme["events"], to_acme["num_kept_blocks"]) == (None, None, None)
    assert to_acme["usage"]["prompt_tokens"] == 2 * len(RULES)
    assert to_acme["usage"]["cached_tokens"] == len(RULES) - 1
    assert to_acme["usage"]["tenant"] == "acme"
    assert "other" not in str(to_acme)


async def test_blocks_that_prefixes_keep_are_told_apart() -> None:
    async with http_served(loaded(scripted())) as worker:
        await complete(worker, RULES, {})
        async with grpc.aio.insecure_channel(worker.grpc_address) as channel:
            stub = cache_pb2_grpc.CacheServiceStub(channel)
            kept = await stub.CreatePrefix(cache_pb2.CreatePrefixRequest(text=RULES))
        now = await data(worker, "now", {})
    assert now["num_kept_blocks"] == kept.prefix.num_blocks == len(RULES) // 16


async def test_live_requests_are_those_that_the_caller_may_know_of() -> None:
    model = GatedModel(scripted())
    async with http_served(loaded(model), access=NamedCallers()) as worker:
        loop = worker.worker.engine_loop

        async def num_live() -> int:
            return await loop.call(lambda engine: len(list(engine.answers())))

        answers = [
            asyncio.create_task(complete(worker, RULES, who, max_tokens=900)) for who in (ACME, ACME, OTHER)
        ]
        while await model.stepping(num_live()) < 3:
            pass
        to_admin, to_acme = [await model.stepping(data(worker, "now", who)) for who in (ADMIN, ACME)]
        model.allow(10_000)
        await asyncio.gather(*answers)
        later = await data(worker, "now", OTHER)
    assert sorted(request["tenant"] for request in to_admin["requests"]) == ["acme", "acme", "other"]
    assert [request["tenant"] for request in to_acme["requests"]] == ["acme", "acme"]
    assert all(request["prompt_tokens"] == len(RULES) for request in to_admin["requests"])
    assert later["requests"] == []


async def test_the_tree_is_seen_as_dump_tree_shows_it() -> None:
    async with http_served(loaded(scripted()), access=NamedCallers()) as worker:
        await complete(worker, RULES, ACME)
        await complete(worker, "x" * 40, OTHER)
        to_admin, to_acme = [await data(worker, "tree?by=blocks", who) for who in (ADMIN, ACME)]
        zoomed = await data(worker, f"tree?by=tokens&root={to_admin['cells'][0]['key']}", ADMIN)
        gone = await data(worker, "tree?root=gone", ADMIN)
    assert {cell["tenant"] for cell in to_admin["cells"]} == {"acme", "other"}
    assert {cell["tenant"] for cell in to_acme["cells"]} == {"acme"}
    assert {cell["preview"] for cell in to_admin["cells"]} == {""}  # others' private texts are not an admin's
    assert to_acme["cells"][0]["preview"] == RULES[:24]
    assert (to_acme["latest_use"], to_acme["cells"][0]["last_used"]) == (0, 0)
    assert to_admin["latest_use"] > 0
    assert to_admin["total"] == sum(share["num_blocks"] for share in to_admin["tenants"])
    first = to_admin["cells"][0]
    assert zoomed["root"] == first["key"]
    assert zoomed["cells"][0]["parent"] == -1
    assert all(cell["tenant"] == first["tenant"] for cell in zoomed["cells"])
    assert [step["key"] for step in zoomed["lineage"]] == [first["key"]]
    assert (gone["root"], len(gone["cells"])) == (None, len(to_admin["cells"]))


async def test_what_has_not_changed_is_not_sent_again() -> None:
    async with http_served(loaded(scripted())) as worker:
        await complete(worker, RULES, {})
        for path in ("/ui/data/now", "/ui/data/tree", "/ui/", "/ui/page.js"):
            first = await worker.client.get(path)
            again = await worker.client.get(path, headers={"if-none-match": first.headers["etag"]})
            assert (again.status_code, again.content) == (304, b""), path
        other = await worker.client.get("/ui/data/tree", headers={"if-none-match": '"other"'})
    assert other.status_code == 200


async def test_a_prompt_is_explained_in_the_callers_name() -> None:
    async with http_served(loaded(scripted()), access=NamedCallers()) as worker:
        await complete(worker, RULES, ACME)

        async def explained(headers: dict[str, str], **body: Any) -> Any:
            return await worker.client.post("/ui/data/explain", json=body, headers=headers)

        mine = (await explained(ACME, prompt=RULES[:50] + "not this, but something else")).json()
        others = (await explained(OTHER, prompt=RULES)).json()
        admins = (await explained(ADMIN, prompt=RULES)).json()
        chat = (await explained(ACME, messages=[{"role": "user", "content": "hi"}])).json()
        refusals = [
            refusal(await explained(ACME), 400),
            refusal(await explained(ACME, prompt="a", messages=[]), 400),
            refusal(await explained(ACME, prompt="a", cause=1), 400),
            refusal(await explained(ACME, messages=[{"role": "robot", "content": ""}]), 400),
        ]
    assert (mine["num_cached_tokens"], mine["cause"]) == (50, "MISS_CAUSE_NEVER_SEEN")
    assert mine["divergence"]["position"] == 50
    assert mine["divergence"]["prompt_preview"].endswith("not this, bu")
    assert (others["num_cached_tokens"], others["held_by_tenant"]) == (0, "")
    assert admins["held_by_tenant"] == "acme"
    assert chat["num_prompt_tokens"] > 2
    assert [error["param"] for error in refusals] == ["prompt", "prompt", "cause", "messages[0].role"]


async def test_a_worker_that_shares_nothing_has_a_page_too() -> None:
    async with http_served(loaded(scripted()), scheme="paged") as worker:
        await complete(worker, RULES, {})
        now, tree = [await data(worker, path, {}) for path in ("now", "tree")]
        error = refusal(await worker.client.post("/ui/data/explain", json={"prompt": "a"}), 400)
    assert now["events"] is None
    assert now["stats"]["requests"]["finished"] == 1
    assert (tree["cells"], tree["total"]) == ([], 0)
    assert "shares nothing" in error["message"]


@pytest.mark.parametrize("path", ["/ui/data/tree?by=age", "/ui/data/other", "/ui/nothing.js", "/ui/a/b"])
async def test_what_is_not_there_is_refused(path: str) -> None:
    async with http_served(loaded(scripted())) as worker:
        refusal(await worker.client.get(path), 400 if "tree" in path else 404)


async def test_the_short_address_leads_to_the_page() -> None:
    async with http_served(loaded(scripted())) as worker:
        moved = await worker.client.get("/ui")
        assert (moved.status_code, moved.headers["location"]) == (307, "ui/")


def test_a_message_becomes_plain_values() -> None:
    request = diagnosis_pb2.LiveRequest(state=diagnosis_pb2.REQUEST_STATE_PAUSED, age_seconds=0.5)
    response = plain(diagnosis_pb2.ListRequestsResponse(requests=[request], num_left_out=2**40))
    [listed] = response["requests"]
    assert response["num_left_out"] == 2**40
    assert (listed["state"], listed["age_seconds"], listed["queue_seconds"]) == (
        "REQUEST_STATE_PAUSED",
        0.5,
        None,
    )
    assert plain(cache_pb2.ExplainResponse(num_prompt_tokens=1))["divergence"] is None
