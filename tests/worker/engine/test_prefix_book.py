"""Kept prefixes on an engine stepped by hand: made, used, refused, ended, saved."""

from __future__ import annotations

from math import inf

import pytest
from support.hand_engine import HandEngine, reference, stream
from support.hand_engine import stream as tokens_of

from prefixcache import Namespace, OutOfBlocksError, pack_tokens
from prefixcache_worker.engine.prefix_book import Prefix, PrefixBook, PrefixOrder
from prefixcache_worker.errors import (
    NotFoundError,
    PermissionDeniedError,
    PrefixBudgetError,
    PrefixLostError,
    SchemeError,
)


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def order(
    token_ids: list[int],
    *,
    tenant: str = "t",
    salt: str = "",
    public: bool = False,
    ttl_seconds: float = inf,
    label: str = "",
    max_pinned_blocks: int | None = None,
) -> PrefixOrder:
    return PrefixOrder(
        namespace=Namespace(model="tiny", tenant=tenant, salt=salt, is_publisher=public),
        tokens=pack_tokens(token_ids),
        is_public=public,
        ttl_seconds=ttl_seconds,
        label=label,
        max_pinned_blocks=max_pinned_blocks,
    )


def add(hand: HandEngine, wanted: PrefixOrder) -> str:
    """Let the engine compute a prefix; the request's id."""
    token_ids = [int.from_bytes(wanted.tokens[i : i + 4], "little") for i in range(0, len(wanted.tokens), 4)]
    return hand.add(
        token_ids,
        tenant=wanted.namespace.tenant,
        salt=wanted.namespace.salt,
        public=wanted.num_public_tokens,
        kept_as=wanted,
    )


def create(hand: HandEngine, wanted: PrefixOrder) -> Prefix:
    """Compute a prefix and keep it."""
    request_id = add(hand, wanted)
    hand.run()
    prefix = hand.completions[request_id].prefix
    assert prefix is not None
    return prefix


def test_a_prefix_is_pinned_in_the_step_that_publishes_it() -> None:
    # What waits needs more than the prefix leaves: if the prefix were not pinned when that is admitted, in
    # the very next step, its blocks would be evicted for it.
    hand = HandEngine(num_blocks=8, max_pinned_share=0.5, max_running=1)
    kept_id = add(hand, order(stream("a", 64)))
    greedy_id = hand.add(stream("b", 80), tenant="u")
    modest_id = hand.add(stream("c", 64), tenant="u")
    hand.run()

    prefix = hand.completions[kept_id].prefix
    assert prefix is not None
    assert prefix.num_blocks == 4
    assert hand.tokens(kept_id) == []
    assert isinstance(hand.failures[greedy_id], OutOfBlocksError)
    assert hand.tokens(modest_id) == reference(stream("c", 64), 1)
    assert hand.match(stream("a", 65)) == 64


def test_a_prefix_says_what_it_is() -> None:
    clock = Clock()
    hand = HandEngine(clock=clock)
    prefix = create(hand, order(stream("a", 40), ttl_seconds=60, label="policy"))

    assert prefix == Prefix(
        prefix_id=prefix.prefix_id,
        tenant="t",
        label="policy",
        num_tokens=40,
        num_kept_tokens=32,
        num_blocks=2,
        public=False,
        ttl_seconds=60,
        seconds_left=60,
        num_uses=0,
        created_ns=1000 * 10**9,
    )
    assert len(prefix.prefix_id) == 22  # 128 random bits


def test_a_prefix_of_cached_tokens_computes_one_of_them() -> None:
    hand = HandEngine()
    hand.generate(stream("a", 64))
    request_id = add(hand, order(stream("a", 64)))
    hand.run()

    usage = hand.completions[request_id].usage
    assert (usage.cached_tokens, usage.computed_tokens, usage.completion_tokens) == (63, 1, 0)
    assert usage.written_tokens == 0


def test_each_use_starts_the_time_anew_and_counts() -> None:
    clock = Clock()
    hand = HandEngine(clock=clock)
    book = hand.engine.prefixes
    prefix = create(hand, order(stream("a", 32), ttl_seconds=10))

    clock.seconds += 9
    assert hand.generate(stream("a", 40), 3) == reference(stream("a", 40), 3)
    used = book.get(prefix.prefix_id, tenant="t")
    assert (used.seconds_left, used.num_uses) == (10, 1)

    clock.seconds += 9
    hand.generate(stream("b", 40))
    assert book.get(prefix.prefix_id, tenant="t").seconds_left == 1

    book.start_with(prefix.prefix_id, tenant="t")
    assert book.get(prefix.prefix_id, tenant="t").seconds_left == 10


def test_a_preempted_request_is_one_use() -> None:
    hand = HandEngine()
    prefix = create(hand, order(stream("a", 32)))
    request_id = hand.add(stream("a", 40), 4)
    hand.step()
    hand.engine.preempt(request_id)
    hand.run()
    assert hand.engine.prefixes.get(prefix.prefix_id, tenant="t").num_uses == 1


def test_an_ended_a_deleted_and_a_foreign_prefix_are_not_found_alike() -> None:
    clock = Clock()
    hand = HandEngine(clock=clock)
    book = hand.engine.prefixes
    ended = create(hand, order(stream("a", 32), ttl_seconds=10))
    deleted = create(hand, order(stream("b", 32)))
    foreign = create(hand, order(stream("c", 32), tenant="u"))
    book.delete(deleted.prefix_id, tenant="t")
    clock.seconds += 10

    for prefix_id in (ended.prefix_id, deleted.prefix_id, foreign.prefix_id, "never"):
        for ask in (book.get, book.start_with, book.update, book.delete):
            with pytest.raises(NotFoundError) as caught:
                ask(prefix_id, tenant="t")
            assert str(caught.value) == (
                f"prefix_id: there is no prefix {prefix_id!r}, or it has ended; create it again"
            )
    assert hand.cache.stats().num_pinned == 2  # the foreign one's
    assert book.num_pinned_blocks() == {"u": 2}


def test_an_admin_sees_and_changes_all_but_starts_no_prompt_with_them() -> None:
    hand = HandEngine()
    book = hand.engine.prefixes
    prefix = create(hand, order(stream("a", 32), tenant="u"))

    assert book.get(prefix.prefix_id, tenant="t", sees_all=True) == prefix
    assert book.update(prefix.prefix_id, tenant="t", sees_all=True, label="x").label == "x"
    with pytest.raises(NotFoundError):
        book.start_with(prefix.prefix_id, tenant="t")
    book.delete(prefix.prefix_id, tenant="t", sees_all=True)
    assert book.num_pinned_blocks() == {}


def test_a_public_prefix_is_everybodys_to_read_and_its_owners_to_change() -> None:
    hand = HandEngine()
    book = hand.engine.prefixes
    prefix = create(hand, order(stream("a", 32), tenant="u", public=True))

    assert book.get(prefix.prefix_id, tenant="t") == prefix
    assert book.start_with(prefix.prefix_id, tenant="t").tokens == pack_tokens(stream("a", 32))
    assert hand.match(stream("a", 40)) == 32
    for ask in (book.update, book.delete):
        with pytest.raises(PermissionDeniedError, match="another tenant's"):
            ask(prefix.prefix_id, tenant="t")
    assert book.page("t", after_ns=-1, size=10) == ([], False)
    assert book.page("u", after_ns=-1, size=10) == ([prefix], False)


def test_the_same_tokens_salt_and_publicity_are_the_same_prefix() -> None:
    clock = Clock()
    hand = HandEngine(clock=clock)
    book = hand.engine.prefixes
    prefix = create(hand, order(stream("a", 40), ttl_seconds=10))
    clock.seconds += 4
    assert book.get(prefix.prefix_id, tenant="t").seconds_left == 6

    same = book.renew_same(order(stream("a", 40), ttl_seconds=99, label="z"))
    assert same is not None
    assert (same.prefix_id, same.ttl_seconds, same.seconds_left, same.label) == (prefix.prefix_id, 10, 10, "")
    for other in (
        order(stream("a", 41)),
        order(stream("a", 40), salt="s"),
        order(stream("a", 40), tenant="u"),
        order(stream("a", 40), public=True),
    ):
        assert book.renew_same(other) is None


def test_two_that_are_made_at_once_are_one() -> None:
    hand = HandEngine()
    first, second = add(hand, order(stream("a", 32))), add(hand, order(stream("a", 32)))
    hand.run()
    prefixes = [hand.completions[request_id].prefix for request_id in (first, second)]
    assert None not in prefixes
    assert len({prefix.prefix_id for prefix in prefixes if prefix is not None}) == 1
    assert hand.completions[second].usage.cached_tokens == 31


def test_the_pool_has_a_budget_and_the_refusal_tells_nothing_of_others() -> None:
    hand = HandEngine(num_blocks=16, max_pinned_share=0.5)
    book = hand.engine.prefixes
    create(hand, order(stream("a", 96), tenant="u"))

    with pytest.raises(PrefixBudgetError) as caught:
        book.require_room(order(stream("b", 48)))
    assert caught.value.tenant == "t"
    assert str(caught.value) == (
        "the prefix has 3 blocks, and the worker has no room to keep so many; "
        "delete a prefix, try a shorter one, or try again when others have ended"
    )
    book.require_room(order(stream("b", 32)))
    # What is pinned already costs nothing more.
    book.require_room(order(stream("a", 128), tenant="u"))
    with pytest.raises(PrefixBudgetError):
        book.require_room(order(stream("a", 144), tenant="u"))


def test_room_that_is_gone_when_the_prefix_is_computed_fails_its_request_alone() -> None:
    hand = HandEngine(num_blocks=16, max_pinned_share=0.25)
    ids = [add(hand, order(tokens_of(name, 48), tenant=name)) for name in "ab"]
    hand.run()
    assert hand.completions.keys() == {ids[0]}
    assert isinstance(hand.failures[ids[1]], PrefixBudgetError)
    assert hand.engine.stats().requests.failed == 1
    assert hand.engine.stats().requests.finished == 1


def test_a_tenant_has_a_budget_of_its_own_in_blocks_and_in_number() -> None:
    hand = HandEngine()
    book = hand.engine.prefixes
    create(hand, order(stream("a", 32), max_pinned_blocks=3))

    with pytest.raises(
        PrefixBudgetError, match=r"needs 2 more blocks; the tenant may keep 3 .* keeps 2 in 1"
    ):
        book.require_room(order(stream("b", 32), max_pinned_blocks=3))
    book.require_room(order(stream("a", 48), max_pinned_blocks=3))  # two of its blocks are paid for
    create(hand, order(stream("a", 33), max_pinned_blocks=3))
    create(hand, order(stream("a", 34), max_pinned_blocks=3))
    with pytest.raises(PrefixBudgetError, match=r"needs 0 more blocks; .* keeps 2 in 3"):
        book.require_room(order(stream("a", 35), max_pinned_blocks=3))
    with pytest.raises(PrefixBudgetError):
        book.require_room(order(stream("c", 16), max_pinned_blocks=0))
    book.require_room(order(stream("b", 32), tenant="u", max_pinned_blocks=2))


def test_a_shorter_prefix_whose_last_block_is_kept_needs_no_block() -> None:
    hand = HandEngine()
    create(hand, order(stream("a", 48), max_pinned_blocks=3))
    short = create(hand, order(stream("a", 32), max_pinned_blocks=3))
    assert short.num_blocks == 2
    assert hand.engine.prefixes.num_pinned_blocks() == {"t": 3}


def test_a_reset_ends_all_prefixes_and_those_that_are_being_made() -> None:
    hand = HandEngine(max_batch_tokens=16)
    prefix = create(hand, order(stream("a", 32)))
    request_id = add(hand, order(stream("b", 48)))
    hand.step()
    hand.cache.reset()
    hand.run()

    assert isinstance(hand.failures[request_id], PrefixLostError)
    with pytest.raises(NotFoundError):
        hand.engine.prefixes.get(prefix.prefix_id, tenant="t")
    assert hand.cache.stats().num_pinned == 0


def test_making_one_can_be_cancelled() -> None:
    hand = HandEngine(max_batch_tokens=16)
    request_id = add(hand, order(stream("a", 48)))
    hand.step()
    assert hand.engine.cancel(request_id)
    hand.engine.check()
    assert hand.engine.prefixes.page("t", after_ns=-1, size=10) == ([], False)
    assert hand.cache.stats().num_live == 0


def test_pages_go_on_behind_what_was_deleted_and_made_meanwhile() -> None:
    hand = HandEngine(clock=Clock())  # all are made at one moment
    book = hand.engine.prefixes
    made = [create(hand, order(stream(name, 32))).prefix_id for name in "abcd"]
    first, has_more = book.page("t", after_ns=-1, size=2)
    assert ([prefix.prefix_id for prefix in first], has_more) == (made[:2], True)

    book.delete(made[1], tenant="t")
    book.delete(made[2], tenant="t")
    made.append(create(hand, order(stream("e", 32))).prefix_id)
    rest, has_more = book.page("t", after_ns=first[-1].created_ns, size=2)
    assert ([prefix.prefix_id for prefix in rest], has_more) == (made[3:], False)


def test_records_bring_back_what_is_still_cached() -> None:
    clock = Clock()
    hand = HandEngine(clock=clock)
    book = hand.engine.prefixes
    kept = create(hand, order(stream("a", 40), ttl_seconds=10, label="x", salt="s"))
    public = create(hand, order(stream("b", 32), tenant="u", public=True))
    hand.generate(stream("b", 40))
    gone = create(hand, order(stream("c", 32)))
    clock.seconds += 4
    records = book.records()
    book.delete(gone.prefix_id, tenant="t")

    # Another book over the same cache, as after a restart from a snapshot; block 0 of "c" is lost.
    hand.cache.reset()
    hand.generate(stream("a", 40), salt="s")
    hand.generate(stream("b", 40), tenant="u", public=32)
    restored = PrefixBook(hand.cache, clock=clock)
    assert restored.restore(records, model="tiny") == 2
    restored.check()

    first = restored.get(kept.prefix_id, tenant="t")
    assert (first.label, first.ttl_seconds, first.seconds_left, first.num_uses) == ("x", 10, 6, 0)
    assert (first.num_tokens, first.num_kept_tokens) == (40, 32)
    second = restored.get(public.prefix_id, tenant="t")
    assert (second.public, second.tenant, second.ttl_seconds, second.num_uses) == (True, "u", inf, 1)
    assert [record._replace(num_uses=0) for record in restored.records()] == [
        record._replace(num_uses=0) for record in records[:2]
    ]
    restored.start_with(kept.prefix_id, tenant="t")
    assert restored.get(kept.prefix_id, tenant="t").seconds_left == 10


@pytest.mark.parametrize("scheme", ["paged", "contiguous"])
def test_where_nothing_is_shared_no_prefix_is_kept(scheme: str) -> None:
    book = HandEngine(scheme=scheme, context_length=128).engine.prefixes
    wanted = order(stream("a", 32))
    for ask in (
        lambda: book.renew_same(wanted),
        lambda: book.require_room(wanted),
        lambda: book.get("x", tenant="t"),
        lambda: book.start_with("x", tenant="t"),
        lambda: book.page("t", after_ns=-1, size=1),
        lambda: book.update("x", tenant="t"),
        lambda: book.delete("x", tenant="t"),
        book.records,
    ):
        with pytest.raises(SchemeError, match="--scheme shared"):
            ask()  # type: ignore[no-untyped-call]


def test_a_cache_priority_outlives_what_is_colder() -> None:
    hand = HandEngine(num_blocks=8)
    hand.generate(stream("a", 48), cache_priority=5)
    hand.generate(stream("b", 48))
    hand.generate(stream("c", 48))
    assert hand.match(stream("a", 49)) == 48
    assert hand.match(stream("b", 49)) < 48


def test_a_cache_priority_ends() -> None:
    clock = Clock()
    hand = HandEngine(num_blocks=8, clock=clock)
    hand.generate(stream("a", 48), cache_priority=5, cache_priority_seconds=10)
    clock.seconds += 10
    hand.generate(stream("b", 48))
    hand.generate(stream("c", 48))
    assert hand.match(stream("a", 49)) < 48
    assert hand.match(stream("b", 49)) == 48
