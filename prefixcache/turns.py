"""How often a conversation has been continued, as far as the cache can tell."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from prefixcache.explain import first_loss
from prefixcache.history import History
from prefixcache.namespace import Namespace
from prefixcache.radix_node import MAX_TURN, RadixNode
from prefixcache.radix_tree import Path, RadixTree
from prefixcache.token_chunks import TOKEN_BYTES

_MAX_BLOCKS_REPLACED = 2
"""A continued prompt may differ from its predecessor in the last blocks, where an answer has begun."""


class Turn(NamedTuple):
    """What a request makes of the conversation that it belongs to."""

    of_request: int
    """0 for the first request of a conversation, at most `MAX_TURN`."""
    of_path: int
    """What the nodes it matches have at least."""


_FIRST = Turn(0, 0)
_PARTING = Turn(0, MAX_TURN)
_CONTINUING = tuple(Turn(turn, turn) for turn in (*range(1, MAX_TURN + 1), MAX_TURN))
"""By the turn that is continued."""


def turn_of(tree: RadixTree, history: History, path: Path, tokens: bytes, namespace: Namespace) -> Turn:
    """The turn of a prompt with this path.

    It continues a conversation when the block behind its path was lost, or when the path ends
    where a cached prompt does. Where prompts part, the path has proved to be of use to several
    conversations: it counts as the latest turn, and the prompt as a first one. O(edges).
    """
    end = path.end
    lost = first_loss(tree, history, path, tokens, namespace) if history else None
    if lost is not None:
        return _CONTINUING[lost.turn]
    if end.parent is None:
        return _FIRST
    if _num_blocks_behind(end, path.num_end_blocks) <= _MAX_BLOCKS_REPLACED:
        return _CONTINUING[end.turn]
    is_parting = path.num_tokens < len(tokens) // TOKEN_BYTES - 1
    return _PARTING if is_parting else _FIRST


def _num_blocks_behind(end: RadixNode, num_end_blocks: int) -> float:
    """Blocks that the only cached prompt through a path has behind it; infinite when there are several."""
    num_blocks = len(end.block_ids) - num_end_blocks
    if not end.children:
        return num_blocks
    if len(end.children) > 1:
        return inf
    (child,) = end.children.values()
    return num_blocks + len(child.block_ids) if child.is_leaf else inf
