"""Who may see what: prompts that several tenants have computed, publishers, salts and secrets."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cache_runs import num_matched, run, start
from support.token_streams import stream

from prefixcache import Namespace, NotPublisherError, PrefixCache

X = [9999]
A, B, C = stream("a", 40), stream("b", 24), stream("c", 24)


def tenant(name: str, *, salt: str = "", model: str = "model") -> Namespace:
    return Namespace(model, name, salt=salt)


STRANGER = tenant("stranger")


@pytest.mark.parametrize("num_tenants", [2, 3, 5])
def test_what_enough_tenants_have_computed_is_seen_by_others(num_tenants: int) -> None:
    """Each computes all of it; whole chunks become visible, and not before the last of them."""
    cache = PrefixCache(num_blocks=80, public_after_tenants=num_tenants)
    for number in range(num_tenants):
        assert num_matched(cache, A + X, STRANGER) == 0
        assert run(cache, A, tenant(f"tenant {number}")).num_cached_tokens == 0
    assert num_matched(cache, A + X, STRANGER) == 32
    assert sum(node.public for node in cache.dump()) == 1
    cache.check()


def test_one_tenant_is_one_however_often_it_computes() -> None:
    cache = PrefixCache(num_blocks=80, public_after_tenants=2)
    for _ in range(5):
        run(cache, A, tenant("busy"))
        cache.evict(80)
    run(cache, A, tenant("busy"))
    assert num_matched(cache, A + X, STRANGER) == 0
    run(cache, A, tenant("second"))
    assert num_matched(cache, A + X, STRANGER) == 32


def test_what_is_salted_is_neither_counted_nor_shown() -> None:
    """A salt narrows, also where prompts of several tenants would become visible."""
    cache = PrefixCache(num_blocks=80, public_after_tenants=2)
    for name in ("one", "two", "three"):
        run(cache, A, tenant(name, salt="any"))
    run(cache, A, tenant("one"))
    run(cache, A, tenant("two", salt="any"))
    assert num_matched(cache, A + X, STRANGER) == 0
    run(cache, A, tenant("two"))
    assert num_matched(cache, A + X, STRANGER) == 32


def test_without_a_number_everything_stays_private_for_ever() -> None:
    cache = PrefixCache(num_blocks=80)
    for number in range(10):
        run(cache, A, tenant(f"tenant {number}"))
    assert num_matched(cache, A + X, STRANGER) == 0


def test_what_is_behind_stays_private() -> None:
    cache = PrefixCache(num_blocks=80, public_after_tenants=2)
    run(cache, A[:32] + B, tenant("one"))
    run(cache, A[:32] + C, tenant("two"))
    for prompt in (A[:32] + B + X, A[:32] + C + X, A + X):
        assert num_matched(cache, prompt, STRANGER) == 32
    assert num_matched(cache, A[:32] + B + X, tenant("two")) == 32
    assert num_matched(cache, A[:32] + C + X, tenant("two")) == 56
    assert num_matched(cache, A[:32] + B + X, tenant("one")) == 56
    run(cache, A[:32] + B, STRANGER)  # it only reads the first two chunks, and is the second for the third
    assert num_matched(cache, A[:32] + B + X, tenant("two")) == 48


def test_another_model_build_does_not_count() -> None:
    cache = PrefixCache(num_blocks=80, public_after_tenants=2)
    run(cache, A, tenant("one"))
    run(cache, A, tenant("two", model="model@2"))
    for model in ("model", "model@2"):
        assert num_matched(cache, A + X, tenant("stranger", model=model)) == 0


def test_what_was_not_published_does_not_count() -> None:
    cache = PrefixCache(num_blocks=80, public_after_tenants=2)
    run(cache, A, tenant("one"))
    without_cache = cache.acquire(A, tenant("two"), use_cache=False)
    cache.publish(without_cache, 40)
    cut_off = start(cache, A, tenant("three"))
    cache.publish(cut_off, 20)
    assert num_matched(cache, A + X, STRANGER) == 16
    cache.publish(cut_off, 40)
    assert num_matched(cache, A + X, STRANGER) == 32


def test_what_was_evicted_meanwhile_has_been_computed_all_the_same() -> None:
    cache = PrefixCache(num_blocks=80, public_after_tenants=2)
    run(cache, A, tenant("one"))
    cache.evict(80)
    run(cache, A, tenant("two"))
    assert num_matched(cache, A + X, STRANGER) == 32


def test_sightings_are_bounded_and_the_oldest_are_forgotten() -> None:
    cache = PrefixCache(num_blocks=8, public_after_tenants=2)
    run(cache, A, tenant("one"))
    for number in range(40):
        run(cache, [number] * 16, tenant("one"))
    assert cache._handles._sightings is not None
    assert len(cache._handles._sightings._tenants) == 32
    run(cache, A, tenant("two"))
    assert num_matched(cache, A + X, STRANGER) == 0
    run(cache, [39] * 16, tenant("two"))
    assert num_matched(cache, [39] * 17, STRANGER) == 16


def test_the_first_chunks_of_a_prompt_are_remembered_longest() -> None:
    cache = PrefixCache(num_blocks=4, block_size=1, public_after_tenants=2)  # 16 chunks
    run(cache, [1, 2, 3, 4], tenant("one"))
    for prompt in ([11, 12, 13, 14], [21, 22, 23, 24], [31, 32, 33, 34], [41]):
        run(cache, prompt, tenant("one"))
    run(cache, [1, 2, 3, 4], tenant("two"))
    assert num_matched(cache, [1, 2, 3, 4, *X], STRANGER) == 3


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=10)


@settings(deadline=None)
@given(
    runs=st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["", "salt"]), prompts), max_size=14),
    asked=prompts,
    num_tenants=st.sampled_from([2, 3]),
)
def test_visible_is_exactly_what_enough_tenants_have_published(
    runs: list[tuple[str, str, list[int]]], asked: list[int], num_tenants: int
) -> None:
    cache = PrefixCache(num_blocks=400, block_size=2, public_after_tenants=num_tenants)
    computed_by: defaultdict[tuple[int, ...], set[str]] = defaultdict(set)
    for name, salt, prompt in runs:
        run(cache, prompt, tenant(name, salt=salt))
        for end in range(2, len(prompt) + 1, 2):
            if not salt:
                computed_by[tuple(prompt[:end])].add(name)
    visible = [prefix for prefix, names in computed_by.items() if len(names) >= num_tenants]
    expected = max([num_common(prefix, asked[:-1]) for prefix in visible], default=0)
    assert num_matched(cache, asked, STRANGER) == expected


def num_common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(one), len(other)))


def test_only_publishers_write_in_public_and_everybody_reads() -> None:
    cache = PrefixCache(num_blocks=80)
    publisher = Namespace("model", "publisher", is_publisher=True)
    with pytest.raises(NotPublisherError, match="32 tokens are declared public"):
        cache.acquire(A, tenant("publisher"), num_public_tokens=32)
    run(cache, A + B, publisher, num_public_tokens=32)
    for reader, num_tokens in (
        (STRANGER, 32),
        (tenant("stranger", salt="any"), 32),
        (tenant("publisher"), 64),  # its own, without the role
        (tenant("publisher", salt="any"), 32),
    ):
        assert num_matched(cache, A + B + X, reader) == num_tokens
    run(cache, A[:32] + C, STRANGER)
    assert num_matched(cache, A[:32] + C + X, STRANGER) == 56
    assert num_matched(cache, A[:32] + C + X, publisher) == 32
    assert sum(len(node.token_ids) for node in cache.dump() if node.public) == 32


any_text = st.text(alphabet=st.characters(exclude_categories=[]) | st.sampled_from("\0/:|\x1f,\ud800"))


@given(any_text, any_text, any_text, any_text)
def test_no_two_owners_have_the_same_scope(tenant_1: str, salt_1: str, tenant_2: str, salt_2: str) -> None:
    one, other = tenant(tenant_1, salt=salt_1), tenant(tenant_2, salt=salt_2)
    assert (one.scope == other.scope) == ((tenant_1, salt_1) == (tenant_2, salt_2))
    assert len(one.scope) == 16


@given(any_text)
def test_wherever_a_text_is_cut_into_tenant_and_salt_it_is_another_owner(text: str) -> None:
    scopes = {tenant(text[:cut], salt=text[cut:]).scope for cut in range(len(text) + 1)}
    assert len(scopes) == len(text) + 1


def test_a_salt_of_64_kb_is_an_owner_of_its_own() -> None:
    salts = ["x" * 65536, "x" * 65535, "x" * 65537, "x" * 65535 + "\0", "\0" * 65536]
    cache = PrefixCache(num_blocks=80)
    for salt in salts:
        assert run(cache, A, tenant("one", salt=salt)).num_cached_tokens == 0
    for salt in salts:
        assert num_matched(cache, A + X, tenant("one", salt=salt)) == 40
        assert num_matched(cache, A + X, tenant(salt)) == 0


@settings(deadline=None)
@given(salt=any_text)
def test_a_salt_can_only_narrow(salt: str) -> None:
    """Whatever it is, it sees what is public, and of the rest what it has written itself."""
    cache = PrefixCache(num_blocks=80)
    publisher = Namespace("model", "publisher", is_publisher=True)
    owners = [publisher, tenant("one"), tenant("one", salt="salt"), tenant("", salt="one")]
    for owner in owners:
        run(cache, A + B, owner, num_public_tokens=32 if owner is publisher else 0)
    for name in ("one", "publisher", "stranger", ""):
        guess = tenant(name, salt=salt)
        assert num_matched(cache, A + B + X, guess) == (64 if guess in owners else 32)


SECRETS = [b"", b"\0", b"one", b"one\0", b"other", b"x" * 64, b"x" * 65, b"x" * 64 + b"y"]


def test_another_secret_gives_other_scopes_and_keys() -> None:
    owners = [Namespace("model", "tenant", secret=secret) for secret in SECRETS]
    for one, other in combinations(owners, 2):
        assert one.scope != other.scope
        assert one != other
    cache = PrefixCache(num_blocks=80)
    for owner in owners:
        assert run(cache, A, owner).num_cached_tokens == 0
    keys_under = []
    for secret in SECRETS:
        keyed = PrefixCache(num_blocks=80, key_secret=secret)
        run(keyed, A, Namespace("model", "publisher", is_publisher=True), num_public_tokens=40)
        keys_under.append(set(keyed.block_keys()))
    assert len(set().union(*keys_under)) == sum(map(len, keys_under)) == 2 * len(SECRETS)


def test_a_secret_is_not_told() -> None:
    assert "s3cret" not in repr(Namespace("model", "tenant", secret=b"s3cret"))
