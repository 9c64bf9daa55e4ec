"""A prefix that ends where a block does is found one block short.

What `(n - 1) // block_size` does in place of `n // block_size`: prompts that share whole blocks compute the
last of them again. All other prompts hit as they should.
"""

from __future__ import annotations

from prefixcache import Namespace, PrefixCache
from prefixcache.live_handles import LiveHandles
from prefixcache.radix_tree import Path
from prefixcache_worker.engine.engine import Engine


def plant(engine: Engine) -> None:
    """Every look for a prefix is too careful at a block's border."""
    assert isinstance(engine.cache, PrefixCache)
    engine.cache._handles.__class__ = _HandlesShortOfBorders


class _HandlesShortOfBorders(LiveHandles):
    __slots__ = ()

    def walk(
        self,
        tokens: bytes,
        namespace: Namespace,
        num_public_tokens: int,
        max_cached_tokens: int | None = None,
    ) -> Path:
        path = super().walk(tokens, namespace, num_public_tokens, max_cached_tokens)
        if path.partial is not None or not path.num_chunks:
            return path
        limit = (path.num_chunks - 1) * self._block_size
        return super().walk(tokens, namespace, num_public_tokens, limit)
