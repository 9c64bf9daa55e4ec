"""Every bound on the calls that make, change and list prefixes. All functions raise InvalidRequestError."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from prefixcache import pack_tokens
from prefixcache.v1 import cache_pb2
from prefixcache_worker.engine.prefix_book import PrefixOrder
from prefixcache_worker.server.access.caller import Caller, Role
from prefixcache_worker.server.served_model import ServedModel
from prefixcache_worker.server.validation.bounds import checked_salt, given, require
from prefixcache_worker.server.validation.prompts import prefix_token_ids

MAX_LABEL_LENGTH = 256
MAX_PREFIX_ID_LENGTH = 64
MAX_PAGE_SIZE = 1000
USUAL_PAGE_SIZE = 100
_MAX_PAGE_TOKEN = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTtl:
    """How long the worker lets a prefix be kept after its last use."""

    usual_seconds: float
    """Where the message does not say; infinite for ever."""
    max_seconds: float
    """Infinite where there is no bound, so that for ever is possible."""

    def checked(self, message: Any) -> float | None:
        """What the message's `ttl_seconds` asks for, infinite for ever; None when it is absent."""
        seconds: float | None = given(message, "ttl_seconds", None)
        if seconds is None:
            return None
        if seconds == 0:
            require(
                self.max_seconds == inf,
                "ttl_seconds",
                f"this worker keeps nothing for ever; give up to {self.max_seconds:g}",
            )
            return inf
        bounds = "above 0" if self.max_seconds == inf else f"in (0, {self.max_seconds:g}]"
        require(
            0 < seconds <= self.max_seconds and seconds < inf, "ttl_seconds", f"{seconds:g} is not {bounds}"
        )
        return seconds


def prefix_order_from_proto(
    message: cache_pb2.CreatePrefixRequest, *, caller: Caller, model: ServedModel, ttl: PrefixTtl
) -> PrefixOrder:
    """What is to be kept. Takes as long as tokenising does. Also raises PermissionDeniedError."""
    if message.public:
        caller.require(Role.PUBLISHER, "a public prefix")
        require(not message.salt, "salt", "a public prefix has none, since all tenants read it; leave it out")
    checked_salt(message.salt, "salt")
    seconds = ttl.checked(message)
    label = checked_label(message.label)
    token_ids = prefix_token_ids(message, model)
    return PrefixOrder(
        namespace=caller.namespace(model.build, salt=message.salt),
        tokens=pack_tokens(token_ids),
        is_public=message.public,
        ttl_seconds=ttl.usual_seconds if seconds is None else seconds,
        label=label,
        max_pinned_blocks=caller.limits.max_pinned_blocks,
    )


def checked_label(label: str) -> str:
    """The label itself, which may be empty."""
    require(
        len(label) <= MAX_LABEL_LENGTH,
        "label",
        f"has {len(label)} characters; at most {MAX_LABEL_LENGTH} are taken",
    )
    return label


def checked_prefix_id(prefix_id: str) -> str:
    """The id itself, which is not empty."""
    require(
        1 <= len(prefix_id) <= MAX_PREFIX_ID_LENGTH,
        "prefix_id",
        f"has {len(prefix_id)} characters; 1 to {MAX_PREFIX_ID_LENGTH} are taken",
    )
    return prefix_id


def page_from_proto(message: cache_pb2.ListPrefixesRequest) -> tuple[int, int]:
    """After which creation a page begins, and how many prefixes it may have."""
    size = given(message, "page_size", USUAL_PAGE_SIZE)
    require(1 <= size <= MAX_PAGE_SIZE, "page_size", f"{size} is not in 1 to {MAX_PAGE_SIZE}")
    token = message.page_token
    is_number = token.isascii() and token.isdigit() and len(token) <= 19 and int(token) < _MAX_PAGE_TOKEN
    require(not token or is_number, "page_token", "is none that this worker has given; begin without it")
    return int(token or -1), size
