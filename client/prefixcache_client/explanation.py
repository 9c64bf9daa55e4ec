"""Why a prompt is not cached: from a proto message to immutable Python values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from prefixcache.v1 import cache_pb2
from prefixcache_client.fields import from_fields


class MissCause(StrEnum):
    """Why the rest of a prompt is not cached."""

    UNKNOWN = "unknown"
    """A cause that this client is too old to know."""
    NONE = "none"
    """All is cached but the last token, which is always computed."""
    NEVER_SEEN = "never_seen"
    """Nobody whose cache the caller may read has computed these tokens, or it is forgotten."""
    EVICTED = "evicted"
    """They were cached until their blocks were needed."""
    EXPIRED = "expired"
    """A prefix or a priority kept them until it ended."""
    OTHER_TENANT = "other_tenant"
    """Another tenant has them."""
    OTHER_SCOPE = "other_scope"
    """The tenant has them under another salt, or as private what is declared public now."""
    OTHER_MODEL = "other_model"
    """They are cached for another build of the model."""
    BELOW_BLOCK = "below_block"
    """What is left of the prompt is less than a block."""
    CACHE_OFF = "cache_off"
    """They were computed by a request that did not use the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where a prompt leaves what is cached."""

    position: int
    """Tokens before it are the same."""
    prompt_token: int
    cached_token: int | None
    """None when the cached prompt ends there."""
    prompt_preview: str
    """The text around it: the last tokens that are the same, and the prompt's next ones."""
    cached_preview: str
    """The same of the cached prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How much of a prompt is cached, and why not more."""

    num_prompt_tokens: int
    num_cached_tokens: int
    """What `generate` would find in the cache now."""
    cause: MissCause
    divergence: Divergence | None
    """None when all of it is cached."""
    summary: str
    """One sentence for people: the numbers, the cause, and what to do."""
    held_by_tenant: str
    """The tenant that has more of the prompt, for an admin."""


def explanation_from_proto(response: cache_pb2.ExplainResponse) -> Explanation:
    """The explanation."""
    divergence = None
    if response.HasField("divergence"):
        token = response.divergence.cached_token if response.divergence.HasField("cached_token") else None
        divergence = from_fields(Divergence, response.divergence, cached_token=token)
    cause = _CAUSES.get(response.cause, MissCause.UNKNOWN)
    return from_fields(Explanation, response, cause=cause, divergence=divergence)


_CAUSES = {
    cache_pb2.MissCause.Value(f"MISS_CAUSE_{cause.name}"): cause
    for cause in MissCause
    if cause is not MissCause.UNKNOWN
}
