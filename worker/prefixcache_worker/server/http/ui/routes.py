"""Where the live page and its data are."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from starlette.responses import RedirectResponse, Response

from prefixcache_worker.server.http.exchange import Answered
from prefixcache_worker.server.http.ui.page_data import PageData
from prefixcache_worker.server.http.ui.static_files import INDEX, StaticFiles


def ui_routes(data: PageData) -> APIRouter:
    """The page at /ui/, which anybody may have, and below it the data, which need a caller."""
    router = APIRouter(include_in_schema=False)
    files = StaticFiles()

    @router.get("/ui")
    async def to_page() -> Response:
        return RedirectResponse("ui/")  # its files lie beside it

    @router.get("/ui/data/now")
    async def now() -> Response:
        return Answered(data.now)

    @router.get("/ui/data/tree")
    async def tree() -> Response:
        return Answered(data.tree)

    @router.post("/ui/data/explain")
    async def explain() -> Response:
        return Answered(data.explain)

    @router.get("/ui/")
    async def page() -> Response:
        return Answered(partial(files.send, INDEX))

    @router.get("/ui/{name}")
    async def file(name: str) -> Response:
        return Answered(partial(files.send, name))

    return router
