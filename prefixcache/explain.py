"""Why a prompt, or the rest of it, is not in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from prefixcache.history import History, Loss, Tombstone
from prefixcache.namespace import PUBLIC_SCOPE, Namespace, decode_fields
from prefixcache.quota import TenantAccount
from prefixcache.radix_node import RadixNode
from prefixcache.radix_tree import Path, RadixTree
from prefixcache.token_chunks import TOKEN_BYTES, unpack_tokens

MAX_OTHER_SCOPES = 64
"""So many of a tenant's scopes are looked into for what another salt has, the latest."""


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


class Elsewhere(NamedTuple):
    """Who has how much of a prompt."""

    model: str
    adapter: str
    tenant: str
    """Empty for public nodes."""
    num_tokens: int
    """Whole chunks of them."""


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
    cached_token_ids: tuple[int, ...] = ()
    """How the nearest cached prompt goes on at the divergence, to the end of its block at most."""


def explain_miss(
    tree: RadixTree,
    history: History,
    path: Path,
    tokens: bytes,
    namespace: Namespace,
    *,
    for_owner: TenantAccount | None,
) -> Explanation:
    """The explanation, given the longest path for a prompt's tokens.

    With `for_owner`, nothing that another owner or domain has is told, and no time depends on it.
    """
    num_tokens = len(tokens) // TOKEN_BYTES
    cause, lost, held_by, divergence = MissCause.NONE, None, None, None
    cached_token_ids: tuple[int, ...] = ()
    if path.num_tokens < num_tokens - 1:
        cached_token_ids = _cached_continuation(tree, path, tokens, namespace)
        divergence = Divergence(
            position=path.num_tokens,
            prompt_token=unpack_tokens(tokens[path.num_tokens * TOKEN_BYTES :][:TOKEN_BYTES])[0],
            cached_token=cached_token_ids[0] if cached_token_ids else None,
        )
        lost = first_loss(tree, history, path, tokens, namespace)
        if for_owner is None:
            holders = _all_holders(tree, tokens, num_tokens - 1)
        else:
            holders = _own_holders(tree, tokens, num_tokens - 1, namespace, for_owner)
        held_by = max(
            (found for found in holders if found.num_tokens > path.num_tokens),
            key=lambda found: (
                (found.model, found.adapter) == (namespace.model, namespace.adapter),
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
        elif (held_by.model, held_by.adapter) != (namespace.model, namespace.adapter):
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
        cached_token_ids=cached_token_ids,
    )


def first_loss(
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


def _cached_continuation(tree: RadixTree, path: Path, tokens: bytes, namespace: Namespace) -> tuple[int, ...]:
    """How the cached prompt nearest to `tokens` goes on behind their path, in the same block."""
    start = path.num_chunks * tree.chunk_bytes
    offset = path.num_tokens * TOKEN_BYTES - start
    end = path.end
    if path.num_end_blocks < len(end.block_ids):
        edge = end.edge[path.num_end_blocks * tree.chunk_bytes :]
    else:
        query = tokens[start : start + tree.chunk_bytes]
        scopes = [namespace.scope, PUBLIC_SCOPE] if end.is_root or end.is_public else [end.scope]
        nodes = [node for scope in scopes for node in tree.children_around(end, scope, query)]
        edges = (node.edge for node in nodes if node.edge.startswith(query[:offset]))
        edge = next((edge for edge in edges if len(edge) > offset), b"")  # a tail may end there
    return tuple(unpack_tokens(edge[offset : tree.chunk_bytes]))


def _all_holders(tree: RadixTree, tokens: bytes, num_tokens: int) -> Iterator[Elsewhere]:
    """Every scope of every domain that has a chunk of the first `num_tokens`."""
    for domain, root in tree.roots():
        yield from _holders(tree, domain, root, tokens, num_tokens, tree.children_with_hash)


def _own_holders(
    tree: RadixTree, tokens: bytes, num_tokens: int, namespace: Namespace, owner: TenantAccount
) -> Iterator[Elsewhere]:
    """The same of the latest scopes of one owner, in the namespace's domain."""

    def children(parent: RadixNode, chunk: bytes) -> list[RadixNode]:
        return tree.own_children_with_hash(owner, parent, chunk, MAX_OTHER_SCOPES)

    root = tree.root_of(namespace.domain)
    return _holders(tree, namespace.domain, root, tokens, num_tokens, children)


def _holders(
    tree: RadixTree,
    domain: bytes,
    root: RadixNode,
    tokens: bytes,
    num_tokens: int,
    children: Callable[[RadixNode, bytes], Iterable[RadixNode]],
) -> Iterator[Elsewhere]:
    """What the public and each private scope of a domain has; `children` finds the private ones."""
    limit = num_tokens * TOKEN_BYTES
    model, adapter = decode_fields(domain)
    offset, _, node, num_blocks = tree.follow(PUBLIC_SCOPE, root, 0, tokens, limit)
    yield Elsewhere(model, adapter, "", offset // TOKEN_BYTES)
    if num_blocks < len(node.block_ids):  # private nodes hang at the ends of public ones
        offset -= num_blocks * tree.chunk_bytes
        node = node.parent or root
    while True:
        for child in children(node, tokens[offset : offset + tree.chunk_bytes]):
            if not child.is_public:
                end = tree.follow(child.scope, node, offset, tokens, limit)[0]
                yield Elsewhere(model, adapter, child.owner.tenant, end // TOKEN_BYTES)
        if node.parent is None:
            break
        offset -= len(node.edge)
        node = node.parent
