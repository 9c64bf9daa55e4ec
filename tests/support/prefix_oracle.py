"""What a prefix cache that forgets nothing has to find, computed the slow and obvious way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from prefixcache import Namespace


class _Entry(NamedTuple):
    """One published prefix: its first `num_public` tokens are everybody's, the rest is `scope`'s."""

    domain: bytes
    scope: bytes
    tokens: tuple[int, ...]
    num_public: int


class PrefixOracle:
    """A set of published prefixes, searched one by one and token by token."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._entries: set[_Entry] = set()

    def longest_match(self, tokens: Sequence[int], namespace: Namespace, num_public: int) -> tuple[int, int]:
        """Tokens matched, and how many of the whole chunks' tokens among them are public."""
        declared = num_public - num_public % self._block_size
        best = (0, 0)
        for entry in self._entries:
            if entry.domain != namespace.domain:
                continue
            visible = len(entry.tokens) if entry.scope == namespace.scope else entry.num_public
            if entry.num_public < declared:  # declared public, but only private here
                visible = min(visible, entry.num_public)
            pairs = zip(tokens, entry.tokens[:visible], strict=False)
            num_matched = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            whole = num_matched - num_matched % self._block_size
            best = max(best, (num_matched, min(whole, entry.num_public)))
        return best

    def publish(self, tokens: Sequence[int], namespace: Namespace, num_public: int) -> None:
        declared = num_public - num_public % self._block_size
        num_matched, matched_public = self.longest_match(tokens, namespace, num_public)
        if num_matched < len(tokens):
            whole = num_matched - num_matched % self._block_size
            may_go_on_publicly = matched_public == whole
            public = max(matched_public, min(declared, len(tokens)) if may_go_on_publicly else 0)
            self._entries.add(_Entry(namespace.domain, namespace.scope, tuple(tokens), public))
