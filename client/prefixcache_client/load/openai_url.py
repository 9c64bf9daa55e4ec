"""Where an OpenAI-compatible server is."""

from __future__ import annotations

from urllib.parse import urlsplit


def checked_url(url: str) -> str:
    """The URL without /v1. Raises ValueError unless it is http://HOST:PORT or https://HOST:PORT."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    try:
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number, or too large
        is_url = False
    if not is_url or path not in ("", "/v1") or parts.query or parts.fragment or parts.username:
        raise ValueError(f"must be http://HOST:PORT or https://HOST:PORT, got {url!r}")
    return f"{parts.scheme}://{parts.netloc}"
