"""Whole sequences on the cache alone: what the worker does, without a model."""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache import CacheHandle, Namespace, PrefixCache

NAMESPACE = Namespace("model", "tenant", is_publisher=True)


def start(
    cache: PrefixCache,
    prompt: Sequence[int],
    namespace: Namespace = NAMESPACE,
    *,
    num_public_tokens: int = 0,
) -> CacheHandle:
    """Acquire and execute the copies, as before the first forward."""
    handle = cache.acquire(prompt, namespace, num_public_tokens=num_public_tokens)
    cache.check()
    cache.complete_copies(handle)
    cache.check()
    return handle


def finish(cache: PrefixCache, handle: CacheHandle, num_written_tokens: int | None = None) -> None:
    """Publish what is written, everything unless told otherwise, and release."""
    written = handle.num_tokens if num_written_tokens is None else num_written_tokens
    cache.publish(handle, written, include_tail=True)
    cache.check()
    cache.release(handle)
    cache.check()


def run(
    cache: PrefixCache,
    prompt: Sequence[int],
    namespace: Namespace = NAMESPACE,
    *,
    num_public_tokens: int = 0,
) -> CacheHandle:
    """One sequence from acquire to release, with nothing generated. The released handle comes back."""
    handle = start(cache, prompt, namespace, num_public_tokens=num_public_tokens)
    finish(cache, handle)
    return handle


def num_matched(cache: PrefixCache, prompt: Sequence[int], namespace: Namespace = NAMESPACE) -> int:
    return cache.match(prompt, namespace).num_tokens
