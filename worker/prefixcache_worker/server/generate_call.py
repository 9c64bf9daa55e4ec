"""What both doors do with a message that asks for an answer."""

from __future__ import annotations

from functools import partial

from prefixcache.v1 import inference_pb2
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.engine.prefix_book import PrefixOrder
from prefixcache_worker.engine.request import Request
from prefixcache_worker.server.access.caller import Caller
from prefixcache_worker.server.off_loop import off_loop
from prefixcache_worker.server.served_model import ServedModel
from prefixcache_worker.server.validation.generate import request_from_proto
from prefixcache_worker.server.validation.prefixes import checked_prefix_id


async def checked_request(
    message: inference_pb2.GenerateRequest, *, caller: Caller, model: ServedModel, engine_loop: EngineLoop
) -> Request:
    """The engine's request. A prefix that it names is looked up; tokenising does not hold up the loop.

    Raises what `request_from_proto` does, NotFoundError, or SchemeError.
    """
    prefix = await _prefix_in_front(message, caller=caller, engine_loop=engine_loop)
    return await off_loop(
        partial(request_from_proto, message, caller=caller, model=model, prefix=prefix),
        num_bytes=message.ByteSize(),
        executor=model.constraints.executor if message.HasField("constraint") else None,
    )


async def _prefix_in_front(
    message: inference_pb2.GenerateRequest, *, caller: Caller, engine_loop: EngineLoop
) -> PrefixOrder | None:
    """What a prompt begins with, its time started anew; None without a `prefix_id`.

    Raises NotFoundError, InvalidRequestError, or SchemeError.
    """
    if not message.prefix_id:
        return None
    prefix_id = checked_prefix_id(message.prefix_id)
    return await engine_loop.call(lambda engine: engine.prefixes.start_with(prefix_id, tenant=caller.tenant))
