"""Cases of the kinds tenant and hash: whose blocks are found, and that nobody else's are."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cache_runs import NAMESPACE, num_matched, run, start
from support.token_streams import stream

from prefixcache import BlockKey, MissCause, Namespace, PrefixCache, TenantQuota, pack_tokens

A = Namespace("model", "A", secret=b"deployment")
B = Namespace("model", "B", secret=b"deployment")
X = [9999]
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=24)


def test_b06_tenant_and_salt_reach_the_key() -> None:
    cache = PrefixCache(num_blocks=40)
    prompt = stream("a", 64)
    requests = {
        "T1": A,
        "T2": A,
        "T3": B,
        "T4": Namespace("model", "", secret=b"deployment"),
        "T5": Namespace("model", "A", salt="other", secret=b"deployment"),
        "T6": B,
    }
    cached = {name: run(cache, prompt, owner).num_cached_tokens for name, owner in requests.items()}
    assert cached == {"T1": 0, "T2": 63, "T3": 0, "T4": 0, "T5": 0, "T6": 63}


def test_b20_adapters_and_versions_are_cold_for_each_other() -> None:
    """A scale belongs into the adapter's name, as a build belongs into the model's."""
    cache = PrefixCache(num_blocks=40)
    owners = [
        Namespace("model", "tenant", adapter="p"),
        Namespace("model", "tenant", adapter="q"),
        Namespace("model", "tenant"),
        Namespace("model", "tenant", adapter="p*0.5"),
        Namespace("model@2", "tenant", adapter="p"),
    ]
    first = [run(cache, stream("a", 64), owner) for owner in owners]
    assert [handle.num_cached_tokens for handle in first] == [0] * 5
    assert cache.stats().num_idle == 20
    again = [run(cache, stream("a", 64), owner).num_cached_tokens for owner in owners]
    assert again == [63] * 5


def test_b42_the_salt_of_another_tenant_opens_nothing() -> None:
    cache = PrefixCache(num_blocks=40)
    salted = Namespace("model", "A", salt="s3cret", secret=b"deployment")
    run(cache, stream("a", 64), salted)
    for salt in ("s3cret", "A", "A\0s3cret", salted.scope.decode("latin-1")):
        attacker = Namespace("model", "B", salt=salt, secret=b"deployment")
        handle = run(cache, stream("a", 64), attacker)
        assert handle.num_cached_tokens == 0


def test_b42_what_is_told_of_tokens_is_told_of_ones_own() -> None:
    """`explain` names the other tenant, for operators; no number and no token of its prompts gets out."""
    cache = PrefixCache(num_blocks=40)
    run(cache, stream("a", 64), A)
    asked = stream("a", 48) + stream("b", 16)
    explanation = cache.explain(asked, B)
    assert explanation.num_cached_tokens == 0
    assert explanation.divergence == (0, stream("a", 1)[0], None)
    assert explanation.cause is MissCause.OTHER_TENANT
    assert cache.match(asked, B) == ([], 0, None)
    run(cache, stream("a", 4), B)
    assert cache.explain(asked, B).divergence == (4, stream("a", 5)[4], None)


@settings(deadline=None)
@given(
    of_others=st.lists(PROMPTS, max_size=4),
    own=st.lists(PROMPTS, max_size=4),
    prompt=PROMPTS,
    block_size=st.sampled_from([1, 4]),
)
def test_b42_what_a_tenant_computes_does_not_depend_on_others(
    of_others: list[list[int]], own: list[list[int]], prompt: list[int], block_size: int
) -> None:
    """So the time to the first token tells nothing about them."""
    alone, shared = (PrefixCache(num_blocks=256, block_size=block_size) for _ in range(2))
    for other_prompt in of_others:
        run(shared, other_prompt, A)
    for own_prompt in [*own, prompt]:
        handles = [start(cache, own_prompt, B) for cache in (alone, shared)]
        computed = [handle.num_tokens - handle.num_cached_tokens for handle in handles]
        assert computed[0] == computed[1] > 0
        assert len(handles[0].copies) == len(handles[1].copies)
        for cache, handle in zip((alone, shared), handles, strict=True):
            cache.publish(handle, len(own_prompt), include_tail=True)
            cache.release(handle)


@pytest.mark.parametrize(("floor_blocks", "num_left"), [(4, 64), (0, 0)])
def test_b95_a_floor_stands_against_a_busy_tenant(floor_blocks: int, num_left: int) -> None:
    quotas = {tenant: TenantQuota(floor_blocks=floor_blocks) for tenant in ("Q", "M")}
    cache = PrefixCache(num_blocks=32, policy="lru", quotas=quotas)
    quiet, busy = Namespace("model", "Q"), Namespace("model", "M")
    run(cache, stream("a", 64), quiet)
    for number in range(200):
        run(cache, [10_000 + number] * 96, busy)
    assert num_matched(cache, stream("a", 64) + X, quiet) == num_left
    assert cache.usage("Q").num_evicted_blocks == 4 - num_left // 16
    assert cache.usage("M").num_cached_blocks == 32 - num_left // 16


def test_b95_alone_a_tenant_may_use_the_whole_pool() -> None:
    cache = PrefixCache(num_blocks=32, quotas={"Q": TenantQuota(), "M": TenantQuota(floor_blocks=4)})
    run(cache, stream("d", 32 * 16), Namespace("model", "M"))
    assert cache.usage("M").num_cached_blocks == 32


def keys_of(cache: PrefixCache) -> set[BlockKey]:
    return set(cache.block_keys())


def test_b39_every_block_has_a_key_of_its_own() -> None:
    cache = PrefixCache(num_blocks=20)
    z = stream("z", 16)
    run(cache, stream("a", 16) + z)
    assert num_matched(cache, stream("b", 16) + z + X) == 0
    run(cache, stream("b", 16) + z)
    assert len(keys_of(cache)) == 4
    run(cache, z + z)
    assert len(keys_of(cache)) == cache.stats().num_idle == 6
    assert num_matched(cache, z + X) == 16


@pytest.mark.parametrize(
    "convert",
    [
        tuple,
        pack_tokens,
        lambda tokens: bytearray(pack_tokens(tokens)),
        lambda tokens: np.array(tokens, dtype=np.int32),
        lambda tokens: np.array(tokens, dtype=np.int64),
        lambda tokens: np.array(tokens, dtype=np.uint32)[::1],
        lambda tokens: np.repeat(np.array(tokens, dtype=np.uint16), 2)[::2],
    ],
)
def test_b40_equal_tokens_hit_whatever_they_came_in(convert: Callable[[list[int]], list[int]]) -> None:
    cache, other_cache = PrefixCache(num_blocks=20), PrefixCache(num_blocks=20)
    prompt = stream("a", 40)
    run(cache, convert(prompt))
    run(other_cache, prompt)
    assert num_matched(cache, prompt + X) == 40
    assert num_matched(other_cache, convert(prompt + X)) == 40
    assert keys_of(cache) == keys_of(other_cache)


def test_b40_other_cuts_of_the_same_digits_are_other_prompts() -> None:
    cache = PrefixCache(num_blocks=20, block_size=1)
    run(cache, [1, 23])
    assert num_matched(cache, [12, 3, *X]) == 0
    run(cache, [12, 3])
    assert len(keys_of(cache)) == 4


def test_b41_keys_do_not_depend_on_how_a_prompt_was_computed() -> None:
    prompt = stream("a", 200)
    in_one_go = PrefixCache(num_blocks=40)
    run(in_one_go, prompt)
    expected = keys_of(in_one_go)
    assert len(expected) == 12
    for chunk in (7, 16, 33, 100):
        cache = PrefixCache(num_blocks=40)
        handle = start(cache, prompt)
        for num_written in [*range(chunk, 200, chunk), 200]:
            cache.publish(handle, num_written)
        cache.release(handle)
        assert keys_of(cache) == expected
    preempted = PrefixCache(num_blocks=40)
    for num_written in (70, 130, 200):
        handle = start(preempted, prompt)
        preempted.publish(handle, num_written, include_tail=True)
        preempted.release(handle)
    assert keys_of(preempted) == expected
    for cache in (in_one_go, preempted):
        assert num_matched(cache, prompt[:192] + X) == 192
        assert num_matched(cache, stream("a", 200, start=100) + X) == 0


def test_b94_the_secret_of_the_deployment_changes_all_keys_and_no_hit() -> None:
    secrets = (b"", b"one", b"other", b"one" * 100)
    caches = [PrefixCache(num_blocks=20, key_secret=secret) for secret in secrets]
    for cache in caches:
        run(cache, stream("a", 48))
        assert num_matched(cache, stream("a", 48) + X) == 48
    keys = [keys_of(cache) for cache in caches]
    assert [len(each) for each in keys] == [3, 3, 3, 3]
    assert len(set().union(*keys)) == 12


def test_b94_whoever_knows_tokens_and_namespace_but_not_the_secret_finds_no_key() -> None:
    """The scope alone is not enough either: the path starts at a keyed hash."""
    secret_scope = Namespace("model", "tenant", secret=b"deployment")
    cache, guess = PrefixCache(num_blocks=20, key_secret=b"deployment"), PrefixCache(num_blocks=20)
    for each in (cache, guess):
        run(each, stream("a", 48), secret_scope)
        run(each, stream("s", 32), NAMESPACE, num_public_tokens=32)
    assert not keys_of(cache) & keys_of(guess)
