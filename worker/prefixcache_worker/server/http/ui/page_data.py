"""What the live page shows, as JSON: the answers of gRPC, for whoever may have them there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import xxhash

from prefixcache import BlocksRemoved, BlocksStored, CacheCleared, Event, NodeView, TreeView
from prefixcache.v1 import cache_pb2, diagnosis_pb2
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.engine.event_feed import EventFeed
from prefixcache_worker.engine.stats import EngineStats
from prefixcache_worker.engine.tenant_usage import tenant_usage
from prefixcache_worker.errors import InvalidRequestError
from prefixcache_worker.server.access.access import Access
from prefixcache_worker.server.access.caller import Caller
from prefixcache_worker.server.grpc.explanation import explain
from prefixcache_worker.server.grpc.prefix_calls import usage_to_proto
from prefixcache_worker.server.grpc.stats_answer import stats_to_proto
from prefixcache_worker.server.grpc.tree_answer import MAX_TREE_NODES, preview
from prefixcache_worker.server.http.bodies import ExplainBody
from prefixcache_worker.server.http.exchange import Exchange
from prefixcache_worker.server.http.to_proto import explain_to_proto
from prefixcache_worker.server.http.typed_body import typed_body
from prefixcache_worker.server.http.ui.engine_looks import EngineLooks
from prefixcache_worker.server.http.ui.icicle import Cell, Icicle, Measure
from prefixcache_worker.server.http.ui.plain import plain
from prefixcache_worker.server.large_requests import LargeRequests
from prefixcache_worker.server.live_requests import live_requests
from prefixcache_worker.server.metrics.latency import RecentSeconds
from prefixcache_worker.server.metrics.request_times import RequestTimes
from prefixcache_worker.server.served_model import ServedModel

MAX_EVENTS = 40
"""The latest, in one answer."""
MAX_REQUESTS = 100
"""The oldest, in one answer."""


MAX_PICTURES = 16
"""Of one look at the tree that are remembered; each takes about 100 KB at most."""


class PageData:
    """Answers the calls of the page. Who is no admin is told of its own tenant and of what is public."""

    def __init__(
        self,
        *,
        engine_loop: EngineLoop,
        model: ServedModel,
        access: Access,
        times: RequestTimes,
        event_feed: EventFeed | None,
        large_requests: LargeRequests,
    ) -> None:
        self._engine_loop = engine_loop
        self._looks = EngineLooks(engine_loop)
        self._model = model
        self._access = access
        self._times = times
        self._event_feed = event_feed
        self._large_requests = large_requests
        self._pictures: WeakKeyDictionary[Icicle, dict[tuple[str | None, Measure, str], bytes]]
        self._pictures = WeakKeyDictionary()  # as JSON; they go when the next look takes the place of theirs

    async def now(self, exchange: Exchange) -> None:
        """GET /ui/data/now: who asks, the model, figures, live requests and the latest events."""
        caller = self._access.caller(exchange.headers)
        tenant = None if caller.is_admin else caller.tenant
        see = self._see_all if caller.is_admin else partial(self._see_tenant, caller)
        seen = await self._looks.look(("now", tenant), see, _digest)
        me = {"tenant": caller.tenant, "role": caller.role.name.lower()}
        await _reply(exchange, _json({"caller": me, "model": self._described_model(), **seen}))

    async def tree(self, exchange: Exchange) -> None:
        """GET /ui/data/tree: a picture of the radix tree, or of what hangs on the node `?root=`.

        `?by=` tokens or blocks, which a cell's width stands for.
        """
        caller = self._access.caller(exchange.headers)
        by = exchange.query("by") or Measure.TOKENS.value
        if by not in [measure.value for measure in Measure]:
            raise InvalidRequestError("by", "must be tokens or blocks")
        tenant = None if caller.is_admin else caller.tenant

        def see(engine: Engine) -> TreeView:
            view: TreeView = engine.cache.view(tenant, max_nodes=MAX_TREE_NODES)
            return view

        digest = partial(Icicle, block_size=self._model.block_size)
        icicle = await self._looks.look(("tree", tenant), see, digest)
        root = exchange.query("root")
        if root not in icicle:
            root = None  # the node has gone: the whole tree then
        pictures = self._pictures.setdefault(icicle, {})
        asked = (root, Measure(by), caller.tenant)
        if asked not in pictures:
            if len(pictures) >= MAX_PICTURES:
                pictures.clear()
            pictures[asked] = await asyncio.to_thread(self._picture, icicle, *asked)
        await _reply(exchange, pictures[asked])

    async def explain(self, exchange: Exchange) -> None:
        """POST /ui/data/explain: why a prompt is cached no further. Changes nothing."""
        caller = self._access.caller(exchange.headers)
        with self._large_requests.room() as room:
            message = explain_to_proto(await typed_body(exchange, room, ExplainBody))
            answer = await exchange.while_connected(
                explain(message, caller=caller, engine_loop=self._engine_loop, model=self._model)
            )
        await _reply(exchange, _json(plain(answer)))

    def _see_all(self, engine: Engine) -> _Seen:
        events = None if self._event_feed is None else self._event_feed.latest(MAX_EVENTS)
        num_kept = engine.cache.stats().num_pinned_only
        stats = (engine.stats(), self._times.recent())
        return _Seen(live_requests(engine, None, limit=MAX_REQUESTS), stats, num_kept, events=events)

    def _see_tenant(self, caller: Caller, engine: Engine) -> _Seen:
        [usage] = tenant_usage(engine, [caller.tenant])
        live = live_requests(engine, caller.tenant, limit=MAX_REQUESTS)
        return _Seen(live, usage=usage_to_proto(usage, caller))

    def _described_model(self) -> dict[str, Any]:
        model = self._model
        return {
            "name": model.name,
            "device": model.device,
            "kv_dtype": model.kv_dtype,
            "context_length": model.context_length,
            "block_size": model.block_size,
            "block_bytes": model.block_bytes,
            "num_blocks": model.num_blocks,
        }

    def _picture(self, icicle: Icicle, root: str | None, measure: Measure, tenant: str) -> bytes:
        def text(node: NodeView) -> str:
            return preview(node, tenant=tenant, tokenizer=self._model.tokenizer)

        return _json(
            {
                "root": root,
                "total": icicle.total(measure),
                "num_nodes": len(icicle.nodes),
                "num_left_out": icicle.num_left_out,
                "latest_use": icicle.latest_use,
                "lineage": [{"key": key, "preview": text(node)} for key, node in icicle.lineage(root)],
                "tenants": [share._asdict() for share in icicle.tenants()],
                "cells": [_cell(cell, text) for cell in icicle.cells(root, measure)],
            }
        )


class _Seen(NamedTuple):
    """The engine at one moment, as an admin may see it, or a tenant."""

    live: diagnosis_pb2.ListRequestsResponse
    stats: tuple[EngineStats, dict[str, RecentSeconds]] | None = None
    """Of all tenants, with the latest durations."""
    num_kept_blocks: int | None = None
    """That prefixes keep and no request holds."""
    usage: cache_pb2.TenantUsage | None = None
    events: list[Event] | None = None
    """None too where nothing is shared."""


def _digest(seen: _Seen) -> dict[str, Any]:
    return {
        "requests": [plain(request) for request in seen.live.requests],
        "num_requests_left_out": seen.live.num_left_out,
        "stats": None if seen.stats is None else plain(stats_to_proto(*seen.stats)),
        "num_kept_blocks": seen.num_kept_blocks,
        "usage": None if seen.usage is None else plain(seen.usage),
        "events": None if seen.events is None else [_event(event) for event in seen.events],
    }


def _event(event: Event) -> dict[str, Any]:
    # As a text: a number of this size is none that JavaScript can hold.
    number = {"number": str(event.sequence_number)}
    match event:
        case BlocksStored():
            blocks = {"num_blocks": len(event.block_keys), "num_tokens": event.num_tokens}
            return {**number, "kind": "stored", **blocks, "public": event.public}
        case BlocksRemoved():
            return {**number, "kind": "removed", "num_blocks": len(event.block_keys), "cause": event.cause}
        case CacheCleared():
            return {**number, "kind": "cleared"}


def _cell(cell: Cell, text: Callable[[NodeView], str]) -> dict[str, Any]:
    plain_cell = {field.name: getattr(cell, field.name) for field in fields(cell) if field.name != "node"}
    return {**plain_cell, "preview": None if cell.node is None else text(cell.node)}


def _json(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()


async def _reply(exchange: Exchange, body: bytes) -> None:
    """The answer, or nothing but a status where the page has the same already."""
    tag = f'"{xxhash.xxh3_64_hexdigest(body)}"'
    headers = {"etag": tag, "cache-control": "no-store", "content-type": "application/json"}
    if dict(exchange.headers).get("if-none-match") == tag:
        await exchange.reply(b"", status=304, headers=headers)
    else:
        await exchange.reply(body, headers=headers)
