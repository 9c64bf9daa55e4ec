"""What the subcommands read: text that a message can hold."""

from __future__ import annotations

from collections.abc import Callable

from prefixcache_client.errors import PrefixCacheClientError


class NotTextError(PrefixCacheClientError):
    """Somebody gave bytes that are no UTF-8 text."""


def read_text(read: Callable[[], str]) -> str:
    """What `read` takes from standard input. Raises NotTextError unless it is UTF-8."""
    try:
        return checked_text(read())
    except UnicodeError:
        raise NotTextError("standard input is not UTF-8 text") from None


def checked_text(text: str) -> str:
    """The text itself. Raises UnicodeEncodeError when it stands for bytes that are no UTF-8."""
    text.encode("utf-8")
    return text
