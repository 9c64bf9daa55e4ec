"""How many requests fit: the arithmetic against caches that are really filled."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache import Namespace, OutOfBlocksError, PrefixCache
from prefixcache_worker.attention.kv_format import FP32, KvDtype, KvFormat, KvScales
from prefixcache_worker.engine.cache_scheme import make_cache
from prefixcache_worker.model.model import AttentionShape, AttentionWindow
from prefixcache_worker.planning.kv_plan import SCHEMES, KvPlan, RequestLoad, propose_block_size, propose_pool

FP16 = KvFormat(KvDtype.FP16)
INT8 = KvFormat(KvDtype.INT8, KvScales.TOKEN_HEAD)
SEVEN_BILLION = AttentionShape(num_layers=32, num_query_heads=32, num_kv_heads=32, head_dim=128)
TINY = AttentionShape(num_layers=2, num_query_heads=4, num_kv_heads=2, head_dim=8)
NAMESPACE = Namespace("m", "t", secret=b"s")


def plan(longest: int, mean: int | None = None, prefix: int = 0, **changes: Any) -> KvPlan:
    load = RequestLoad(longest_tokens=longest, mean_tokens=mean or longest, prefix_tokens=prefix)
    return KvPlan(**({"shape": TINY, "kv_format": FP32, "block_size": 16, "load": load} | changes))


def test_s02_a_token_of_7b_takes_524288_bytes_and_2048_tokens_1_gib() -> None:
    kv = plan(2048, shape=SEVEN_BILLION, kv_format=FP16)
    assert kv.token_bytes == 524_288
    assert 2048 * kv.token_bytes == 1 << 30
    assert {scheme: kv.num_requests(scheme, 10 << 30) for scheme in SCHEMES} == dict.fromkeys(SCHEMES, 10)


def test_s02_grouped_heads_count_as_kv_heads() -> None:
    grouped = AttentionShape(num_layers=32, num_query_heads=32, num_kv_heads=8, head_dim=128)
    assert plan(2048, shape=grouped, kv_format=FP16).token_bytes == 524_288 // 4


def test_s08_preallocation_leaves_three_quarters_unused_at_512_of_2048() -> None:
    kv = plan(2048, 512)
    assert kv.unused_share("contiguous") == 0.75
    assert kv.unused_share("paged") == 0.0


def test_scales_count() -> None:
    assert plan(1, kv_format=INT8).token_bytes == 2 * 2 * 2 * (8 + 2)


def fill(cache: Any, kv: KvPlan) -> int:
    """How many requests a cache really takes at once."""
    prefix, own = kv.load.prefix_tokens, kv.load.mean_tokens - kv.load.prefix_tokens
    for number in count():
        tokens = [1] * prefix + [2 + number] * own
        try:
            handle = cache.acquire(tokens, NAMESPACE)
        except OutOfBlocksError:
            return number
        if handle.copies:
            cache.complete_copies(handle)
        if isinstance(cache, PrefixCache):
            cache.publish(handle, len(tokens))
    raise AssertionError


@given(
    scheme=st.sampled_from(SCHEMES),
    block_size=st.sampled_from([1, 2, 4, 16]),
    num_blocks=st.integers(1, 60),
    lengths=st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(0, 40)),
)
def test_as_many_requests_fit_as_a_cache_takes(
    scheme: str, block_size: int, num_blocks: int, lengths: tuple[int, int, int]
) -> None:
    prefix, own, spare = lengths  # each request has at least one token of its own
    kv = plan(prefix + own + spare, prefix + own, prefix, block_size=block_size)
    fitting = kv.num_requests(scheme, num_blocks * kv.block_bytes + kv.block_bytes - 1)
    if scheme == "contiguous" and num_blocks * block_size < kv.load.longest_tokens:
        assert fitting == 0
        return
    cache = make_cache(
        scheme, num_blocks=num_blocks, block_size=block_size, max_total_tokens=kv.load.longest_tokens
    )

    assert fill(cache, kv) == fitting


@given(
    requests=st.integers(0, 50),
    prefix=st.integers(0, 200),
    own=st.integers(1, 200),
    block=st.sampled_from([1, 16, 64]),
)
def test_sharing_never_takes_more(requests: int, prefix: int, own: int, block: int) -> None:
    kv = plan(prefix + own, prefix=prefix, block_size=block)
    shared, paged = (kv.blocks(scheme, requests) for scheme in ("shared", "paged"))
    assert paged - shared == max(0, requests - 1) * kv.shared_blocks


def test_any_number_fits_when_all_of_a_request_is_shared() -> None:
    assert plan(32, prefix=32).num_requests("shared", 2 * plan(32).block_bytes) is None
    assert plan(32, prefix=32).num_requests("shared", 2 * plan(32).block_bytes - 1) == 0


def test_behind_the_windows_of_all_layers_nothing_is_held() -> None:
    windowed = AttentionShape(
        num_layers=2, num_query_heads=4, num_kv_heads=2, head_dim=8, windows=(AttentionWindow(32, 4),) * 2
    )
    kv = plan(4096, shape=windowed, prefix=1024)
    assert kv.request_blocks("paged") == (32 + 4 + 16 + 15) // 16
    assert kv.shared_blocks == 0
    assert kv.request_blocks("contiguous") == 256


@pytest.mark.parametrize(
    ("tokens", "size"), [(1, 16), (800, 16), (1600, 32), (3199, 32), (3200, 64), (10**6, 64)]
)
def test_longer_requests_go_well_with_larger_blocks(tokens: int, size: int) -> None:
    assert propose_block_size(RequestLoad(longest_tokens=tokens, mean_tokens=tokens)) == size


def test_s22_the_pool_is_one_and_a_half_times_the_peak() -> None:
    assert propose_pool(plan(64), "paged", 10) == 60
    assert propose_pool(plan(64, prefix=32), "shared", 10) == 33
