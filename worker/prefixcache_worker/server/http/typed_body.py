"""From a call to the body that it brings."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from prefixcache_worker.server.http.errors import invalid_body
from prefixcache_worker.server.http.exchange import Exchange
from prefixcache_worker.server.http.json_body import parse_json
from prefixcache_worker.server.large_requests import RequestRoom
from prefixcache_worker.server.off_loop import off_loop

BodyT = TypeVar("BodyT", bound=BaseModel)


async def typed_body(exchange: Exchange, room: RequestRoom, kind: type[BodyT]) -> BodyT:
    """The body as one of `kind`. Raises InvalidRequestError, and what `Exchange.read_body` raises."""
    raw = await exchange.read_body(room)

    def parsed() -> BodyT:
        value = parse_json(raw)
        try:
            return kind.model_validate(value)
        except ValidationError as error:
            raise invalid_body(error, value) from error

    return await off_loop(parsed, num_bytes=len(raw))
