"""Which prompts several tenants have computed, each for itself."""

from __future__ import annotations

from collections import OrderedDict

from prefixcache.block_keys import BlockKey, BlockKeys
from prefixcache.errors import InvalidArgumentError
from prefixcache.namespace import Namespace


class TenantSightings:
    """Counts, for the first chunks of prompts, how many tenants have computed them.

    What enough tenants have computed without seeing each other's is no secret of one of them, so
    it may become public (the idea of SafeKV). A salt says that a prompt is to be shared with
    nobody: such prompts are not to be given to this. Remembers the latest `capacity` blocks, and
    of each no more tenants than are needed: about 200 bytes a block.
    """

    __slots__ = ("_block_keys", "_capacity", "_min_tenants", "_tenants")

    def __init__(self, block_keys: BlockKeys, min_tenants: int, *, capacity: int) -> None:
        """Raises InvalidArgumentError when fewer than two tenants would do."""
        if min_tenants < 2:
            raise InvalidArgumentError(
                f"public_after_tenants is {min_tenants}; give at least 2, or None to keep everything private"
            )
        self._block_keys = block_keys
        self._min_tenants = min_tenants
        self._capacity = capacity
        self._tenants: OrderedDict[BlockKey, tuple[str, ...]] = OrderedDict()

    def num_visible_chunks(self, namespace: Namespace, tokens: bytes) -> int:
        """Note that a tenant has computed these tokens, and return how many chunks enough have. O(chunks)."""
        keys = self._block_keys.chain(self._block_keys.root(namespace.domain), tokens)
        for key in reversed(keys):  # so that the first chunks are remembered longest
            tenants = self._tenants.pop(key, ())
            if namespace.tenant not in tenants and len(tenants) < self._min_tenants:
                tenants = (*tenants, namespace.tenant)
            self._tenants[key] = tenants
        while len(self._tenants) > self._capacity:
            self._tenants.popitem(last=False)
        is_visible = [len(self._tenants.get(key, ())) >= self._min_tenants for key in keys]
        return is_visible.index(False) if False in is_visible else len(keys)
