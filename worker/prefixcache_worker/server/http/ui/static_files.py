"""The files of the live page, as they lie beside this one."""

from __future__ import annotations

from importlib import resources

import xxhash

from prefixcache_worker.server.http.errors import HttpError
from prefixcache_worker.server.http.exchange import Exchange

_CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_SECURITY_HEADERS = {
    # Nothing from elsewhere, nothing inline, and nobody may put the page into theirs.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
INDEX = "index.html"


class StaticFiles:
    """Read once; there is nothing in them that anybody may not see."""

    def __init__(self) -> None:
        folder = resources.files("prefixcache_worker.server.http.ui") / "static"
        self._bodies = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}

    async def send(self, name: str, exchange: Exchange) -> None:
        """One of the files; its tag alone where the browser has it already. Raises HttpError."""
        body = self._bodies.get(name)
        if body is None:
            raise HttpError(404, "not_found", f"the live page has no file {name[:100]!r}")
        kind = _CONTENT_TYPES[name[name.rindex(".") :]]
        tag = f'"{xxhash.xxh3_64_hexdigest(body)}"'
        headers = {**_SECURITY_HEADERS, "etag": tag, "content-type": f"{kind}; charset=utf-8"}
        if dict(exchange.headers).get("if-none-match") == tag:
            await exchange.reply(b"", status=304, headers=headers)
        else:
            await exchange.reply(body, headers=headers)
