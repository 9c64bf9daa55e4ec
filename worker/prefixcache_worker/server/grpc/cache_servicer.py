"""prefixcache.v1.CacheService over the engine."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc

from prefixcache.v1 import cache_pb2, cache_pb2_grpc
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.engine.event_feed import EventFeed
from prefixcache_worker.errors import SchemeError, SnapshotsOffError
from prefixcache_worker.server.access.access import Access
from prefixcache_worker.server.access.admission import Admission
from prefixcache_worker.server.access.caller import Role
from prefixcache_worker.server.grpc.event_messages import event_to_proto
from prefixcache_worker.server.grpc.explanation import NOTHING_SHARED, explain, prefix_cache
from prefixcache_worker.server.grpc.grpc_call import authorised, deadline_of, metadata_of, send_request_id
from prefixcache_worker.server.grpc.prefix_calls import (
    create_prefix,
    created_prefix_to_proto,
    delete_prefix,
    get_prefix,
    get_usage,
    list_prefixes,
    update_prefix,
)
from prefixcache_worker.server.grpc.stats_answer import stats_to_proto
from prefixcache_worker.server.grpc.tree_answer import MAX_TREE_NODES, tree_to_proto
from prefixcache_worker.server.metrics.request_times import RequestTimes
from prefixcache_worker.server.off_loop import off_loop
from prefixcache_worker.server.served_model import ServedModel
from prefixcache_worker.server.validation.prefixes import PrefixTtl, prefix_order_from_proto
from prefixcache_worker.snapshots.snapshot_keeper import SnapshotKeeper

logger = logging.getLogger(__name__)


class CacheServicer(cache_pb2_grpc.CacheServiceServicer):
    """Translates between messages and the engine; decides nothing."""

    def __init__(
        self,
        *,
        engine_loop: EngineLoop,
        model: ServedModel,
        access: Access,
        admission: Admission,
        prefix_ttl: PrefixTtl,
        times: RequestTimes,
        event_feed: EventFeed | None = None,
        snapshots: SnapshotKeeper | None = None,
    ) -> None:
        self._engine_loop = engine_loop
        self._model = model
        self._access = access
        self._snapshots = snapshots
        self._event_feed = event_feed
        self._admission = admission
        self._prefix_ttl = prefix_ttl
        self._times = times

    async def CreatePrefix(
        self,
        request: cache_pb2.CreatePrefixRequest,
        context: grpc.aio.ServicerContext[Any, cache_pb2.CreatePrefixResponse],
    ) -> cache_pb2.CreatePrefixResponse:
        """A client that goes away or runs out of time cancels the computation."""
        async with (
            authorised(context, self._access) as caller,
            self._admission.request(caller, metadata_of(context), method="CreatePrefix") as record,
        ):
            await send_request_id(context, record.request_id)
            checked = partial(
                prefix_order_from_proto, request, caller=caller, model=self._model, ttl=self._prefix_ttl
            )
            order = await off_loop(checked, num_bytes=request.ByteSize())
            created = await create_prefix(
                order, record.request_id, engine_loop=self._engine_loop, deadline=deadline_of(context)
            )
            record.usage = created.usage
            return created_prefix_to_proto(created, caller)

    async def GetPrefix(
        self,
        request: cache_pb2.GetPrefixRequest,
        context: grpc.aio.ServicerContext[Any, cache_pb2.GetPrefixResponse],
    ) -> cache_pb2.GetPrefixResponse:
        async with authorised(context, self._access) as caller:
            return await get_prefix(request, caller=caller, engine_loop=self._engine_loop)

    async def ListPrefixes(
        self,
        request: cache_pb2.ListPrefixesRequest,
        context: grpc.aio.ServicerContext[Any, cache_pb2.ListPrefixesResponse],
    ) -> cache_pb2.ListPrefixesResponse:
        async with authorised(context, self._access) as caller:
            return await list_prefixes(request, caller=caller, engine_loop=self._engine_loop)

    async def UpdatePrefix(
        self,
        request: cache_pb2.UpdatePrefixRequest,
        context: grpc.aio.ServicerContext[Any, cache_pb2.UpdatePrefixResponse],
    ) -> cache_pb2.UpdatePrefixResponse:
        async with authorised(context, self._access) as caller:
            return await update_prefix(
                request, caller=caller, engine_loop=self._engine_loop, ttl=self._prefix_ttl
            )

    async def DeletePrefix(
        self,
        request: cache_pb2.DeletePrefixRequest,
        context: grpc.aio.ServicerContext[Any, cache_pb2.DeletePrefixResponse],
    ) -> cache_pb2.DeletePrefixResponse:
        async with authorised(context, self._access) as caller:
            return await delete_prefix(request, caller=caller, engine_loop=self._engine_loop)

    async def GetUsage(
        self,
        request: cache_pb2.GetUsageRequest,
        context: grpc.aio.ServicerContext[Any, cache_pb2.GetUsageResponse],
    ) -> cache_pb2.GetUsageResponse:
        async with authorised(context, self._access) as caller:
            return await get_usage(request, caller=caller, engine_loop=self._engine_loop)

    async def GetStats(
        self,
        request: cache_pb2.GetStatsRequest,
        context: grpc.aio.ServicerContext[Any, cache_pb2.GetStatsResponse],
    ) -> cache_pb2.GetStatsResponse:
        async with authorised(context, self._access) as caller:
            caller.require(Role.ADMIN, "GetStats")
            stats, recent = await self._engine_loop.call(
                lambda engine: (engine.stats(reset_peaks=request.reset_peaks), self._times.recent())
            )
            return stats_to_proto(stats, recent)

    async def DumpTree(
        self,
        request: cache_pb2.DumpTreeRequest,
        context: grpc.aio.ServicerContext[Any, cache_pb2.DumpTreeResponse],
    ) -> cache_pb2.DumpTreeResponse:
        async with authorised(context, self._access) as caller:
            view = await self._engine_loop.call(
                lambda engine: engine.cache.view(
                    None if caller.is_admin else caller.tenant,
                    max_depth=request.max_depth,
                    max_nodes=MAX_TREE_NODES,
                )
            )
            # Off the event loop: a large tree's previews take long enough to hold up the streams.
            return await asyncio.to_thread(
                tree_to_proto, view, tenant=caller.tenant, tokenizer=self._model.tokenizer
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

    async def Explain(
        self,
        request: cache_pb2.ExplainRequest,
        context: grpc.aio.ServicerContext[Any, cache_pb2.ExplainResponse],
    ) -> cache_pb2.ExplainResponse:
        async with authorised(context, self._access) as caller:
            return await explain(request, caller=caller, engine_loop=self._engine_loop, model=self._model)

    # Like Generate a coroutine that writes, so that a watcher that goes away ends it at once.
    async def WatchEvents(  # type: ignore[override]
        self,
        request: cache_pb2.WatchEventsRequest,
        context: grpc.aio.ServicerContext[Any, cache_pb2.WatchEventsResponse],
    ) -> None:
        async with authorised(context, self._access) as caller:
            caller.require(Role.ADMIN, "WatchEvents")
            if self._event_feed is None:
                raise SchemeError(NOTHING_SHARED)
            number = request.from_sequence_number if request.HasField("from_sequence_number") else None
            async with aclosing(self._event_feed.watch(number)) as events:
                async for event in events:
                    await context.write(event_to_proto(event))

    async def Reset(
        self,
        request: cache_pb2.ResetRequest,
        context: grpc.aio.ServicerContext[Any, cache_pb2.ResetResponse],
    ) -> cache_pb2.ResetResponse:
        async with authorised(context, self._access) as caller:
            caller.require(Role.ADMIN, "Reset")
            await self._engine_loop.call(lambda engine: prefix_cache(engine).reset())
            logger.info("%s has reset the cache", caller.tenant)
            return cache_pb2.ResetResponse()


def required(snapshots: SnapshotKeeper | None) -> SnapshotKeeper:
    """Raises SnapshotsOffError when there is none."""
    if snapshots is None:
        raise SnapshotsOffError("the worker has no place for snapshots; start it with --snapshot FOLDER")
    return snapshots
