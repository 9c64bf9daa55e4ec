"""What a prefix cache holds and what it has to find, computed the slow and obvious way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from prefixcache import BlockId, Namespace, pack_tokens

PUBLIC = b""
MAX_PAYERS = 8

Tokens = tuple[int, ...]


class Prefix(NamedTuple):
    """What a cached block stands for: all tokens up to its end, and who may read them."""

    domain: bytes
    scope: bytes
    """`PUBLIC`, or the scope of the private block."""
    num_public_blocks: int
    """Blocks above it that are public: all, if it is public itself."""
    tokens: Tokens


class Route(NamedTuple):
    """Where a prompt is found, and where what follows belongs."""

    scope: bytes
    num_public_blocks: int
    num_blocks: int
    num_partial_tokens: int
    """Tokens of the next block that one of those behind the route begins with."""


class PrefixOracle:
    """A dictionary of prefixes, searched one by one and token by token.

    It does not know which blocks are evicted: it is told so.
    """

    def __init__(
        self,
        block_size: int,
        chunk_hash: Callable[[bytes], int],
        public_after_tenants: int | None,
        num_seen: int,
    ) -> None:
        self.block_size = block_size
        self._chunk_hash = chunk_hash
        self._public_after_tenants = public_after_tenants
        self._num_seen = num_seen
        self._seen: dict[tuple[bytes, Tokens], set[str]] = {}
        """Tenants that have computed these chunks, the latest `num_seen` prefixes of whole chunks."""
        self.block_of: dict[Prefix, BlockId] = {}
        self.payers_of: dict[Prefix, tuple[str, ...]] = {}
        """Who pays for a public block, the latest last."""
        self.tenant_of_scope: dict[bytes, str] = {}

    def longest_match(self, tokens: Sequence[int], namespace: Namespace, num_declared_blocks: int) -> int:
        """How many of the first tokens are cached and may be read."""
        readable = self._readable(namespace, num_declared_blocks)
        return max((_num_common(tokens, prefix.tokens) for prefix in readable), default=0)

    def route(self, tokens: Sequence[int], namespace: Namespace, num_declared_blocks: int) -> Route:
        """The longest of all routes; of equally long ones, the one that stays public longest."""
        readable = self._readable(namespace, num_declared_blocks)
        num_public = self._depth(readable, tokens, PUBLIC, None)
        routes = [self._route(readable, tokens, PUBLIC, num_public, num_public)]
        for num_above in range(num_declared_blocks, num_public + 1):
            depth = max(num_above, self._depth(readable, tokens, namespace.scope, num_above))
            routes.append(self._route(readable, tokens, namespace.scope, num_above, depth))
        return max(
            routes,
            key=lambda route: (
                route.num_blocks,
                route.num_partial_tokens,
                route.scope == PUBLIC,
                route.num_public_blocks,
            ),
        )

    def path(self, tokens: Sequence[int], namespace: Namespace, route: Route) -> list[Prefix]:
        """The prefixes of a route's whole blocks."""
        ends = [(index, tuple(tokens[: (index + 1) * self.block_size])) for index in range(route.num_blocks)]
        return [
            Prefix(namespace.domain, PUBLIC, index, end)
            if route.scope == PUBLIC or index < route.num_public_blocks
            else Prefix(namespace.domain, route.scope, route.num_public_blocks, end)
            for index, end in ends
        ]

    def touch(self, path: Sequence[Prefix], tenant: str) -> None:
        """The tenant is the latest that pays for the public ones."""
        for prefix in path:
            if prefix.scope == PUBLIC:
                self.payers_of[prefix] = payers_after(self.payers_of[prefix], tenant)

    def insert(
        self,
        tokens: Sequence[int],
        namespace: Namespace,
        num_declared_blocks: int,
        table: Sequence[BlockId],
    ) -> None:
        """Publish `tokens`, which lie in `table`, behind their route."""
        route = self.route(tokens, namespace, num_declared_blocks)
        self.touch(self.path(tokens, namespace, route), namespace.tenant)
        if route.num_blocks * self.block_size + route.num_partial_tokens == len(tokens):
            return
        num_public = max(num_declared_blocks, self._num_visible_blocks(tokens, namespace))
        if route.num_blocks > route.num_public_blocks:
            num_public = 0  # a private path stays private
        num_above = route.num_public_blocks
        for index in range(route.num_blocks, self.num_blocks(tokens)):
            is_public = index < num_public
            if is_public or index == num_public > route.num_blocks:
                num_above = index
            scope = PUBLIC if is_public else namespace.scope
            new = Prefix(namespace.domain, scope, num_above, tuple(tokens[: (index + 1) * self.block_size]))
            siblings = [sibling for sibling in self.block_of if self._are_siblings(sibling, new)]
            if any(self._takes_place_of(sibling, new) for sibling in siblings):
                break
            for sibling in siblings:
                if sibling.tokens == new.tokens[: len(sibling.tokens)]:
                    self.forget(sibling)  # a tail that is superfluous now
            self.block_of[new] = table[index]
            if is_public:
                self.payers_of[new] = (namespace.tenant,)
            else:
                self.tenant_of_scope[scope] = namespace.tenant

    def forget(self, prefix: Prefix) -> BlockId:
        """It is not cached any more. Returns the block it was in."""
        self.payers_of.pop(prefix, None)
        return self.block_of.pop(prefix)

    def clear(self) -> None:
        """Nothing is cached any more; what tenants have computed is still known."""
        self.block_of.clear()
        self.payers_of.clear()

    def forget_computed(self) -> None:
        """Which tenants have computed what is not known any more."""
        self._seen.clear()

    def restore(self, prefix: Prefix, block_id: BlockId, payers: tuple[str, ...]) -> None:
        """It is cached again."""
        self.block_of[prefix] = block_id
        if prefix.scope == PUBLIC:
            self.payers_of[prefix] = payers

    def owner_of(self, prefix: Prefix) -> str | None:
        """The tenant of a private prefix."""
        return None if prefix.scope == PUBLIC else self.tenant_of_scope[prefix.scope]

    def is_below(self, prefix: Prefix, public: Prefix) -> bool:
        """Whether a private prefix goes on behind a public one."""
        num_above = self.num_blocks(public.tokens)
        return (
            prefix.scope != PUBLIC
            and prefix.domain == public.domain
            and prefix.num_public_blocks >= num_above
            and prefix.tokens[: len(public.tokens)] == public.tokens
        )

    def _readable(self, namespace: Namespace, num_declared_blocks: int) -> list[Prefix]:
        """What the namespace may read: what is declared public only from public blocks."""
        return [
            prefix
            for prefix in self.block_of
            if prefix.domain == namespace.domain
            and (
                prefix.scope == PUBLIC
                or (prefix.scope == namespace.scope and prefix.num_public_blocks >= num_declared_blocks)
            )
        ]

    def _depth(
        self, readable: Collection[Prefix], tokens: Sequence[int], scope: bytes, num_above: int | None
    ) -> int:
        """Whole blocks that `tokens` begin with; of private ones, those behind `num_above` public ones."""
        return max(
            (
                len(prefix.tokens) // self.block_size
                for prefix in readable
                if prefix.scope == scope
                and num_above in (None, prefix.num_public_blocks)
                and len(prefix.tokens) % self.block_size == 0
                and prefix.tokens == tuple(tokens[: len(prefix.tokens)])
            ),
            default=0,
        )

    def _route(
        self,
        readable: Collection[Prefix],
        tokens: Sequence[int],
        scope: bytes,
        num_above: int,
        num_blocks: int,
    ) -> Route:
        """The route with this end."""
        num_tokens = num_blocks * self.block_size
        behind = (
            _num_common(tokens, prefix.tokens) - num_tokens
            for prefix in readable
            if (prefix.scope, prefix.num_public_blocks) == (scope, num_above)
            and self.num_blocks(prefix.tokens) == num_blocks + 1
        )
        return Route(scope, num_above, num_blocks, max(0, max(behind, default=0)))

    def _num_visible_blocks(self, tokens: Sequence[int], namespace: Namespace) -> int:
        """Note that the tenant has computed `tokens`. Returns how many chunks enough tenants have."""
        if self._public_after_tenants is None or namespace.salt:
            return 0  # what is salted is not to be shared
        num_chunks = len(tokens) // self.block_size
        keys = [
            (namespace.domain, tuple(tokens[: (index + 1) * self.block_size])) for index in range(num_chunks)
        ]
        for key in reversed(keys):
            self._seen[key] = self._seen.pop(key, set()) | {namespace.tenant}
            if len(self._seen) > self._num_seen:
                del self._seen[next(iter(self._seen))]
        for num_visible, key in enumerate(keys):
            if len(self._seen.get(key, ())) < self._public_after_tenants:
                return num_visible
        return num_chunks

    def _are_siblings(self, one: Prefix, other: Prefix) -> bool:
        """Whether both follow on the same block, or both on none, for the same readers."""
        num_blocks = self.num_blocks(one.tokens)
        num_shared_tokens = (num_blocks - 1) * self.block_size
        return (
            one[:3] == other[:3]
            and num_blocks == self.num_blocks(other.tokens)
            and one.tokens[:num_shared_tokens] == other.tokens[:num_shared_tokens]
        )

    def _takes_place_of(self, one: Prefix, other: Prefix) -> bool:
        """Whether siblings end with whole chunks of one hash: then only one of them can be found."""
        chunks = [
            prefix.tokens[(self.num_blocks(prefix.tokens) - 1) * self.block_size :] for prefix in (one, other)
        ]
        if any(len(chunk) < self.block_size for chunk in chunks):
            return False
        first, second = (self._chunk_hash(pack_tokens(chunk)) for chunk in chunks)
        return first == second

    def num_blocks(self, tokens: Sequence[int]) -> int:
        return -(-len(tokens) // self.block_size)


def payers_after(payers: tuple[str, ...], tenant: str) -> tuple[str, ...]:
    """Who pays after the tenant has used the block: the last `MAX_PAYERS` different users."""
    others = [payer for payer in payers if payer != tenant]
    return (*others, tenant)[-MAX_PAYERS:]


def _num_common(tokens: Sequence[int], others: Sequence[int]) -> int:
    for index, (token, other) in enumerate(zip(tokens, others, strict=False)):
        if token != other:
            return index
    return min(len(tokens), len(others))
