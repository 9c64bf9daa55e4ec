from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from support.cache_runs import num_matched, run
from support.token_streams import stream

from prefixcache import Namespace, PrefixCache
from prefixcache.namespace import PUBLIC_SCOPE, decode_fields, encode_fields


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_encoding_is_injective_and_can_be_undone(fields: list[str], other: list[str]) -> None:
    assert decode_fields(encode_fields(*fields)) == fields
    assert (encode_fields(*fields) == encode_fields(*other)) == (fields == other)


def test_b40_no_two_namespaces_meet_however_their_names_are_cut() -> None:
    tenants_and_salts = [
        ("org_1", "2345"),
        ("org_12345", ""),
        ("", "org_12345"),
        ("a", "bc"),
        ("ab", "c"),
        ("a", "b\0c"),
        ("a\0b", "c"),
        ("a", "x" * 65536),
        ("a", "\ud800"),
        ("", ""),
    ]
    namespaces = [Namespace("m", tenant, salt) for tenant, salt in tenants_and_salts]
    namespaces += [Namespace("m", "a", adapter="bc"), Namespace("mb", "a", adapter="c")]
    prompt = stream("a", 40)
    for one, other in combinations(namespaces, 2):
        assert (one.domain, one.scope) != (other.domain, other.scope)
    for namespace in namespaces:
        assert namespace.scope != PUBLIC_SCOPE
        cache = PrefixCache(num_blocks=8)
        run(cache, prompt, namespace)
        for other in namespaces:
            assert num_matched(cache, prompt, other) == (39 if other is namespace else 0)


def test_equal_fields_are_the_same_namespace() -> None:
    one, other = Namespace("m", "t", "s", "a"), Namespace("m", "t", "s", "a")
    assert one == other
    assert (one.domain, one.scope) == (other.domain, other.scope)
