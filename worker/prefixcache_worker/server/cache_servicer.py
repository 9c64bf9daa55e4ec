"""prefixcache.v1.CacheService over the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import grpc

from prefixcache import NodeDump
from prefixcache.v1 import cache_pb2, cache_pb2_grpc
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.errors import SnapshotsOffError
from prefixcache_worker.model.tokenizer import Tokenizer
from prefixcache_worker.server.access import Access
from prefixcache_worker.server.caller import Role
from prefixcache_worker.server.grpc_call import authorised
from prefixcache_worker.server.served_model import ServedModel
from prefixcache_worker.snapshots.snapshot_keeper import SnapshotKeeper

PREVIEW_TOKENS = 24


class CacheServicer(cache_pb2_grpc.CacheServiceServicer):
    """Translates between messages and the engine; decides nothing."""

    def __init__(
        self,
        *,
        engine_loop: EngineLoop,
        model: ServedModel,
        access: Access,
        snapshots: SnapshotKeeper | None = None,
    ) -> None:
        self._engine_loop = engine_loop
        self._model = model
        self._access = access
        self._snapshots = snapshots

    async def GetStats(
        self,
        request: cache_pb2.GetStatsRequest,
        context: grpc.aio.ServicerContext[Any, cache_pb2.GetStatsResponse],
    ) -> cache_pb2.GetStatsResponse:
        async with authorised(context, self._access) as caller:
            caller.require(Role.ADMIN, "GetStats")
            stats = await self._engine_loop.call(lambda engine: engine.stats(reset_peaks=request.reset_peaks))
            return cache_pb2.GetStatsResponse(
                blocks=cache_pb2.BlockStats(**asdict(stats.blocks)),
                tokens=cache_pb2.TokenStats(**asdict(stats.tokens)),
                requests=cache_pb2.RequestStats(**asdict(stats.requests)),
            )

    async def DumpTree(
        self,
        request: cache_pb2.DumpTreeRequest,
        context: grpc.aio.ServicerContext[Any, cache_pb2.DumpTreeResponse],
    ) -> cache_pb2.DumpTreeResponse:
        async with authorised(context, self._access) as caller:
            nodes = await self._engine_loop.call(lambda engine: engine.cache.dump(request.max_depth))
            # Off the event loop: a large tree's previews take long enough to hold up the streams.
            return await asyncio.to_thread(
                tree_to_proto, nodes, tenant=caller.tenant, tokenizer=self._model.tokenizer
            )

    async def Snapshot(
        self,
        request: cache_pb2.SnapshotRequest,
        context: grpc.aio.ServicerContext[Any, cache_pb2.SnapshotResponse],
    ) -> cache_pb2.SnapshotResponse:
        async with authorised(context, self._access) as caller:
            caller.require(Role.ADMIN, "Snapshot")
            report = await required(self._snapshots).save()
            return cache_pb2.SnapshotResponse(**report._asdict())

    async def Restore(
        self,
        request: cache_pb2.RestoreRequest,
        context: grpc.aio.ServicerContext[Any, cache_pb2.RestoreResponse],
    ) -> cache_pb2.RestoreResponse:
        async with authorised(context, self._access) as caller:
            caller.require(Role.ADMIN, "Restore")
            return cache_pb2.RestoreResponse(num_blocks=await required(self._snapshots).restore())


def required(snapshots: SnapshotKeeper | None) -> SnapshotKeeper:
    """Raises SnapshotsOffError when there is none."""
    if snapshots is None:
        raise SnapshotsOffError("the worker has no place for snapshots; start it with --snapshot FOLDER")
    return snapshots


def tree_to_proto(
    nodes: Sequence[NodeDump], *, tenant: str, tokenizer: Tokenizer
) -> cache_pb2.DumpTreeResponse:
    """The same nodes in the same order. Text only of public nodes and those of `tenant`. O(nodes)."""
    response = cache_pb2.DumpTreeResponse()
    for node in nodes:
        preview = ""
        if node.public or node.tenant == tenant:
            preview = tokenizer.decode(list(node.token_ids[:PREVIEW_TOKENS]), skip_special_tokens=False)
        response.nodes.add(
            id=node.id,
            parent_id=node.parent_id,
            public=node.public,
            tenant=node.tenant,
            num_tokens=len(node.token_ids),
            num_blocks=len(node.block_ids),
            num_live_blocks=node.num_live_blocks,
            num_readers=node.num_readers,
            preview=preview,
            last_used=node.last_used,
        )
    return response
