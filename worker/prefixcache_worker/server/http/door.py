"""The OpenAI-compatible door: its routes, and what they say of themselves."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.engine.event_feed import EventFeed
from prefixcache_worker.errors import EngineStoppedError
from prefixcache_worker.server.access.access import Access
from prefixcache_worker.server.access.admission import Admission
from prefixcache_worker.server.access.caller import Role
from prefixcache_worker.server.http.bodies import ChatBody, CompletionBody
from prefixcache_worker.server.http.errors import HttpError
from prefixcache_worker.server.http.exchange import Answered, Exchange
from prefixcache_worker.server.http.generation import Generation
from prefixcache_worker.server.http.objects import (
    ChatChunk,
    ChatCompletion,
    ErrorAnswer,
    Health,
    ModelList,
    ModelObject,
    TextCompletion,
)
from prefixcache_worker.server.http.ui.page_data import PageData
from prefixcache_worker.server.http.ui.routes import ui_routes
from prefixcache_worker.server.large_requests import LargeRequests
from prefixcache_worker.server.metrics.page import Metrics
from prefixcache_worker.server.metrics.request_times import RequestTimes
from prefixcache_worker.server.served_model import ServedModel

_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorAnswer, "description": "The request is refused."},
    "5XX": {"model": ErrorAnswer, "description": "The worker cannot answer."},
}


class Door:
    """The routes of one worker."""

    def __init__(
        self,
        *,
        engine_loop: EngineLoop,
        model: ServedModel,
        access: Access,
        admission: Admission,
        large_requests: LargeRequests,
        metrics: Metrics,
        times: RequestTimes,
        event_feed: EventFeed | None,
    ) -> None:
        self._model = model
        self._access = access
        self._metrics = metrics
        self._is_ready = True
        self._created = int(time.time())
        self._generation = Generation(
            engine_loop=engine_loop,
            model=model,
            access=access,
            admission=admission,
            large_requests=large_requests,
        )
        self._page_data = PageData(
            engine_loop=engine_loop,
            model=model,
            access=access,
            times=times,
            event_feed=event_feed,
            large_requests=large_requests,
        )
        self.app = self._app()

    def begin_drain(self) -> None:
        """Tell whoever sends requests here to send them elsewhere."""
        self._is_ready = False

    def _app(self) -> FastAPI:
        # FastAPI's pages about the API load scripts from elsewhere: the description alone is served.
        app = FastAPI(title="prefixcache", docs_url=None, redoc_url=None, redirect_slashes=False)
        app.add_exception_handler(HTTPException, _no_such_route)

        @app.post("/v1/chat/completions", **_described(ChatCompletion, body=ChatBody, chunk=ChatChunk))
        async def create_chat_completion() -> Response:
            return Answered(self._generation.chat)

        @app.post("/v1/completions", **_described(TextCompletion, body=CompletionBody, chunk=TextCompletion))
        async def create_completion() -> Response:
            return Answered(self._generation.completion)

        @app.get("/v1/models", **_described(ModelList))
        async def list_models() -> Response:
            return Answered(self._list_models)

        @app.get("/v1/models/{model_id:path}", **_described(ModelObject))
        async def retrieve_model(model_id: str) -> Response:
            return Answered(partial(self._retrieve_model, model_id))

        @app.get("/healthz", **_described(Health))
        async def healthz() -> Response:
            return Answered(_healthz)

        @app.get("/readyz", **_described(Health))
        async def readyz() -> Response:
            return Answered(self._readyz)

        @app.get("/metrics", include_in_schema=False)
        async def metrics() -> Response:
            return Answered(self._page_of_metrics)

        app.include_router(ui_routes(self._page_data))
        app.openapi = partial(self._openapi, app)  # type: ignore[method-assign]
        return app

    async def _list_models(self, exchange: Exchange) -> None:
        self._access.caller(exchange.headers)
        await exchange.reply(ModelList(object="list", data=[self._model_object()]))

    async def _retrieve_model(self, name: str, exchange: Exchange) -> None:
        self._access.caller(exchange.headers)
        self._generation.require_model(name)
        await exchange.reply(self._model_object())

    async def _readyz(self, exchange: Exchange) -> None:
        if not self._is_ready:
            raise EngineStoppedError("the worker is shutting down; send requests to another one")
        await exchange.reply(Health(status="ready"))

    async def _page_of_metrics(self, exchange: Exchange) -> None:
        self._access.caller(exchange.headers).require(Role.ADMIN, "/metrics")
        page = await self._metrics.page()
        await exchange.reply(page.body, headers={"content-type": page.content_type})

    def _model_object(self) -> ModelObject:
        return ModelObject(
            id=self._model.name,
            object="model",
            created=self._created,
            owned_by="prefixcache",
            max_model_len=self._model.context_length,
        )

    def _openapi(self, app: FastAPI) -> dict[str, Any]:
        """The description, with the bodies and the chunks, which the routes read and write by themselves."""
        if app.openapi_schema is None:
            described = get_openapi(title=app.title, version=self._model.build, routes=app.routes)
            schemas = described["components"]["schemas"]
            for kind in (ChatBody, CompletionBody, ChatChunk):
                schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas |= schema.pop("$defs", {}) | {kind.__name__: schema}
            for kind in (ChatBody, CompletionBody):
                schemas[kind.__name__]["properties"]["model"] = {"type": "string", "const": self._model.name}
            app.openapi_schema = described
        return app.openapi_schema


async def _healthz(exchange: Exchange) -> None:
    await exchange.reply(Health(status="alive"))


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = f"{request.method} {request.url.path[:200]}: {error.detail.lower()}"
    code = error.detail.lower().replace(" ", "_")
    headers = dict(error.headers or {})

    async def refuse(_exchange: Exchange) -> None:
        raise HttpError(error.status_code, code, sentence, headers=headers)

    return Answered(refuse)


def _described(
    answer: type[BaseModel], *, body: type[BaseModel] | None = None, chunk: type[BaseModel] | None = None
) -> dict[str, Any]:
    """What a route takes and answers, for the description of the API. `chunk`: an event, if streamed."""
    success: dict[str, Any] = {"model": answer, "description": "The answer."}
    described: dict[str, Any] = {"responses": {200: success, **_ERRORS}}
    if body is not None:
        takes = {"required": True, "content": {"application/json": {"schema": _reference(body)}}}
        described["openapi_extra"] = {"requestBody": takes}
    if chunk is not None:
        data = {
            "type": "string",
            "anyOf": [
                {"const": "[DONE]"},
                {
                    "contentMediaType": "application/json",
                    "contentSchema": {"oneOf": [_reference(chunk), _reference(ErrorAnswer)]},
                },
            ],
            "description": "A piece of the answer, the error that ends it, or [DONE].",
        }
        event = {"type": "object", "required": ["data"], "properties": {"data": data}}
        success["content"] = {"text/event-stream": {"schema": event}}
    return described


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
