"""Who may read what: tenants, salts, adapters, public prefixes."""

import pytest
from support.cache_runs import NAMESPACE, finish, num_matched, run, start
from support.token_streams import stream

from prefixcache import InvalidArgumentError, Namespace, PrefixCache

OTHER_TENANT = Namespace("model", "other", is_publisher=True)
X = [9999]
S = stream("s", 40)  # a system prompt: two whole chunks and a half


def test_tenants_salts_models_and_adapters_share_nothing_private() -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, stream("a", 40))
    others = [
        OTHER_TENANT,
        Namespace("model", "tenant", salt="pepper", is_publisher=True),
        Namespace("other model", "tenant", is_publisher=True),
        Namespace("model", "tenant", adapter="lora", is_publisher=True),
    ]
    assert [num_matched(cache, stream("a", 40) + X, other) for other in others] == [0, 0, 0, 0]
    assert num_matched(cache, stream("a", 40) + X) == 40


def test_whole_chunks_declared_public_are_read_by_everybody_in_the_domain() -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, S + stream("a", 24), num_public_tokens=40)
    assert num_matched(cache, S + stream("a", 24) + X, OTHER_TENANT) == 32
    assert num_matched(cache, S + stream("a", 24) + X) == 64
    assert num_matched(cache, S, Namespace("other model", "tenant", is_publisher=True)) == 0
    assert [(node.public, node.tenant, len(node.token_ids)) for node in cache.dump()] == [
        (True, "", 32),
        (False, "tenant", 32),
    ]


def test_private_continuations_hang_under_the_public_prefix_unseen_by_others() -> None:
    cache = PrefixCache(num_blocks=20)
    run(cache, S + stream("a", 24), num_public_tokens=40)
    handle = run(cache, S + stream("a", 24), OTHER_TENANT)  # declares nothing
    assert handle.num_cached_tokens == 32
    nodes = cache.dump()
    assert sorted((node.tenant, len(node.token_ids)) for node in nodes) == [
        ("", 32),
        ("other", 32),
        ("tenant", 32),
    ]
    assert cache.stats().num_idle == 6


def test_what_is_declared_public_is_not_read_from_ones_own_private_copy() -> None:
    """Otherwise the publisher would go on with a copy that nobody else can see."""
    cache = PrefixCache(num_blocks=20)
    run(cache, S)
    handle = run(cache, S + stream("a", 8), num_public_tokens=40)
    assert handle.num_cached_tokens == 0
    assert num_matched(cache, S, OTHER_TENANT) == 32


def test_the_longest_path_wins_and_the_public_one_at_equal_length() -> None:
    cache = PrefixCache(num_blocks=30)
    run(cache, stream("a", 64))
    run(cache, stream("a", 32), OTHER_TENANT, num_public_tokens=32)
    public = next(node for node in cache.dump() if node.public)
    private = next(node for node in cache.dump() if not node.public)
    assert cache.match(stream("a", 64) + X, NAMESPACE).block_ids == list(private.block_ids)
    assert cache.match(stream("a", 32) + X, NAMESPACE).block_ids == list(public.block_ids)
    assert cache.match(stream("a", 33) + X, NAMESPACE).num_tokens == 33


def test_the_own_tail_behind_a_public_prefix_counts() -> None:
    cache = PrefixCache(num_blocks=30)
    run(cache, stream("a", 40))
    run(cache, stream("a", 32), OTHER_TENANT, num_public_tokens=32)
    assert num_matched(cache, stream("a", 40) + X) == 40
    assert num_matched(cache, stream("a", 40) + X, OTHER_TENANT) == 32


def test_a_private_path_leaves_the_public_one_at_any_node() -> None:
    cache = PrefixCache(num_blocks=40)
    run(cache, stream("a", 16) + stream("b", 32))
    run(cache, stream("a", 48), OTHER_TENANT, num_public_tokens=48)
    run(cache, stream("a", 16) + stream("c", 32), OTHER_TENANT, num_public_tokens=48)
    handle = run(cache, stream("a", 16) + stream("d", 32))
    assert handle.num_cached_tokens == 16
    assert num_matched(cache, stream("a", 16) + stream("d", 32) + X) == 48
    assert num_matched(cache, stream("a", 16) + stream("b", 32) + X) == 48
    assert num_matched(cache, stream("a", 48) + X) == 48


def test_a_table_on_a_private_path_moves_as_a_whole_when_the_public_one_is_taken() -> None:
    cache = PrefixCache(num_blocks=40)
    mine = start(cache, stream("a", 64))
    cache.publish(mine, 32)
    run(cache, stream("a", 32), OTHER_TENANT, num_public_tokens=32)
    cache.publish(mine, 64)
    cache.check()
    public = next(node for node in cache.dump() if node.public)
    assert mine.block_table[:2] == list(public.block_ids)
    finish(cache, mine)
    stats = cache.stats()
    assert (stats.num_live, stats.num_idle) == (0, 6)
    assert cache.evict(100) == 6
    cache.check()


@pytest.mark.parametrize("num_public_tokens", [-1, 41])
def test_the_public_boundary_lies_in_the_prompt(num_public_tokens: int) -> None:
    cache = PrefixCache(num_blocks=20)
    with pytest.raises(InvalidArgumentError, match=f"num_public_tokens is {num_public_tokens}; give 0 to 40"):
        cache.acquire(S, NAMESPACE, num_public_tokens=num_public_tokens)
    with pytest.raises(InvalidArgumentError):
        cache.match(S, NAMESPACE, num_public_tokens=num_public_tokens)
    cache.check()


def test_publishing_less_than_before_changes_nothing() -> None:
    """The first two blocks alone could move to the public path, but the table must stay on one."""
    cache = PrefixCache(num_blocks=40)
    mine = start(cache, stream("a", 64))
    cache.publish(mine, 64)
    run(cache, stream("a", 32), OTHER_TENANT, num_public_tokens=32)
    own_ids = list(mine.block_table)
    cache.publish(mine, 32)
    assert mine.block_table == own_ids
    cache.check()


def test_a_public_prefix_that_was_cut_off_leaves_a_public_tail() -> None:
    cache = PrefixCache(num_blocks=40)
    handle = start(cache, S, num_public_tokens=32)
    finish(cache, handle, 24)
    assert num_matched(cache, S, OTHER_TENANT) == 24
    run(cache, S, num_public_tokens=32)
    assert num_matched(cache, S, OTHER_TENANT) == 32
    assert num_matched(cache, S) == 39
