"""Why a prompt, or the rest of it, is not in the cache."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from prefixcache.history import History, Loss, Tombstone
from prefixcache.namespace import PUBLIC_SCOPE, Namespace
from prefixcache.radix_tree import Elsewhere, Path, RadixTree
from prefixcache.token_chunks import TOKEN_BYTES, unpack_tokens


class MissCause(Enum):
    """Why the tokens behind the match have to be computed."""

    NONE = "everything is cached but the last token, which is always computed"
    NEVER_SEEN = "nobody has published these tokens here, or it is no longer remembered"
    EVICTED = "they were cached until their blocks were needed"
    EXPIRED = "a pin or a priority kept them until it ended; then their blocks were needed"
    OTHER_TENANT = "another tenant has them cached"
    OTHER_SCOPE = "the tenant has them cached under another salt, or as private what is declared public now"
    OTHER_MODEL = "they are cached for another model build or adapter"
    BELOW_BLOCK = "what is left of the prompt is less than a block, and no published tail begins with it"
    CACHE_OFF = "they were computed by a request that did not use the cache"


_CAUSE_OF_LOSS = {
    Loss.EVICTED: MissCause.EVICTED,
    Loss.EXPIRED: MissCause.EXPIRED,
    Loss.CACHE_OFF: MissCause.CACHE_OFF,
}


class Divergence(NamedTuple):
    """Where a prompt leaves the cached prompt that is nearest to it."""

    position: int
    """Tokens before it are the same."""
    prompt_token: int
    cached_token: int | None
    """None when the cached prompt ends here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What the cache has of a prompt, and why not more."""

    num_prompt_tokens: int
    num_cached_tokens: int
    """What `acquire` would find now."""
    divergence: Divergence | None
    """None when all but the last token is cached."""
    cause: MissCause
    lost: Tombstone | None
    """When, by which policy and for whom the first missing block was lost, if that is the cause."""
    held_by: Elsewhere | None
    """Who has more of the prompt, if that is the cause."""


def explain_miss(
    tree: RadixTree, history: History, path: Path, tokens: bytes, namespace: Namespace
) -> Explanation:
    """The explanation, given the longest path for a prompt's tokens."""
    num_tokens = len(tokens) // TOKEN_BYTES
    cause, lost, held_by, divergence = MissCause.NONE, None, None, None
    if path.num_tokens < num_tokens - 1:
        divergence = Divergence(
            position=path.num_tokens,
            prompt_token=unpack_tokens(tokens[path.num_tokens * TOKEN_BYTES :][:TOKEN_BYTES])[0],
            cached_token=tree.token_behind(path, tokens, namespace),
        )
        lost = _first_loss(tree, history, path, tokens, namespace)
        held_by = max(
            (found for found in tree.elsewhere(tokens, num_tokens - 1) if found.num_tokens > path.num_tokens),
            key=lambda found: (
                found.domain == namespace.domain,
                found.tenant == namespace.tenant,
                found.num_tokens,
            ),
            default=None,
        )
        if lost is not None:
            cause, held_by = _CAUSE_OF_LOSS[lost.loss], None
        elif held_by is None:
            is_below_block = num_tokens - path.num_chunks * tree.block_size < tree.block_size
            cause = MissCause.BELOW_BLOCK if is_below_block else MissCause.NEVER_SEEN
        elif held_by.domain != namespace.domain:
            cause = MissCause.OTHER_MODEL
        else:
            is_own = held_by.tenant == namespace.tenant
            cause = MissCause.OTHER_SCOPE if is_own else MissCause.OTHER_TENANT
    return Explanation(
        num_prompt_tokens=num_tokens,
        num_cached_tokens=path.num_tokens,
        divergence=divergence,
        cause=cause,
        lost=lost,
        held_by=held_by,
    )


def _first_loss(
    tree: RadixTree, history: History, path: Path, tokens: bytes, namespace: Namespace
) -> Tombstone | None:
    """What became of the first block behind the path, as the tenant's own or as public."""
    start = path.num_chunks * tree.chunk_bytes
    chunk = tokens[start : start + tree.chunk_bytes]
    if len(chunk) < tree.chunk_bytes:
        return None
    scopes = [namespace.scope]
    if path.end.is_public or path.end.is_root:
        scopes.append(PUBLIC_SCOPE)
    keys = [tree.key_behind(path.end, path.num_end_blocks, scope, chunk) for scope in scopes]
    return next(filter(None, map(history.get, keys)), None)
