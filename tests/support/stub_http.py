"""An OpenAI-compatible server of whatever kind a test needs, inside its loop."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(slots=True, kw_only=True)
class StubHttp:
    """Refuses bodies with a field of `unknown_fields`; answers others with `events`, then closes."""

    models: Any = field(default_factory=lambda: {"object": "list", "data": [{"id": "stub"}]})
    unknown_fields: Sequence[str] = ()
    events: Sequence[Any] = ()
    """Each the data of an event: a text as it stands, else as JSON."""
    status: int = 200
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    """By their names in lower case."""
    url: str = ""

    async def list_models(self, request: web.Request) -> web.Response:
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if isinstance(self.models, str):
            return web.Response(text=self.models, content_type="text/html")
        return web.json_response(self.models, status=self.status)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.paths.append(request.path)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.status != 200:
            return web.json_response({"error": {"message": "come again"}}, status=self.status)
        for name in self.unknown_fields:
            if name in body:
                message = f"Unrecognized request argument supplied: {name}"
                return web.json_response({"error": {"message": message}}, status=400)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in self.events:
            data = event if isinstance(event, str) else json.dumps(event)
            await response.write(f": a comment\ndata: {data}\n\n".encode())
        return response


@asynccontextmanager
async def stub_http(**settings: Any) -> AsyncIterator[StubHttp]:
    """Serve on a free port."""
    stub = StubHttp(**settings)
    app = web.Application()
    app.router.add_get("/v1/models", stub.list_models)
    app.router.add_post("/v1/completions", stub.answer)
    app.router.add_post("/v1/chat/completions", stub.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        [(host, port)] = [address[:2] for address in runner.addresses]
        stub.url = f"http://{host}:{port}"
        yield stub
    finally:
        await runner.cleanup()
