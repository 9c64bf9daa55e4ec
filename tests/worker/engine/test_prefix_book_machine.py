"""The book of prefixes beside one that is written down the simplest way: a list."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefixcache import Namespace, PrefixCache, pack_tokens
from prefixcache_worker.engine.prefix_book import PrefixBook, PrefixOrder
from prefixcache_worker.errors import NotFoundError, PermissionDeniedError, PrefixBudgetError

BLOCK_SIZE = 4
NUM_BLOCKS = 40
TENANTS = st.sampled_from(["t", "u"])
PROMPTS = st.lists(st.integers(0, 1), min_size=BLOCK_SIZE, max_size=4 * BLOCK_SIZE)
TTLS = st.sampled_from([3.0, 10.0, inf])


@dataclass
class Entry:
    """A prefix that ought to be kept."""

    prefix_id: str
    tenant: str
    tokens: list[int]
    public: bool
    label: str
    ttl: float
    ends: float

    def blocks(self) -> set[tuple[str, bytes]]:
        """What it keeps: each block by all the tokens to its end, and by whose it is."""
        whose = "" if self.public else self.tenant
        ends = range(BLOCK_SIZE, len(self.tokens) + 1, BLOCK_SIZE)
        return {(whose, pack_tokens(self.tokens[:end])) for end in ends}


class BookMachine(RuleBasedStateMachine):
    """No private prefix has the tokens of a public one here: another token leads them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.cache = PrefixCache(
            num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_pinned_share=0.5, clock=lambda: self.now
        )
        self.book = PrefixBook(self.cache, clock=lambda: self.now)
        self.entries: list[Entry] = []
        self.gone: list[str] = ["never"]

    @rule(
        tenant=TENANTS,
        tail=PROMPTS,
        public=st.booleans(),
        ttl=TTLS,
        label=st.sampled_from(["", "x"]),
        most=st.sampled_from([None, 5]),
    )
    def create(
        self, tenant: str, tail: list[int], public: bool, ttl: float, label: str, most: int | None
    ) -> None:
        tokens = [7 if public else 8, *tail]
        namespace = Namespace("m", tenant, is_publisher=public)
        order = PrefixOrder(
            namespace=namespace,
            tokens=pack_tokens(tokens),
            is_public=public,
            ttl_seconds=ttl,
            label=label,
            max_pinned_blocks=most,
        )
        self._compute(tokens, namespace, len(tokens) if public else 0)
        entry = Entry("", tenant, tokens, public, label, ttl, self.now + ttl)
        same = [e for e in self.entries if (e.tenant, e.tokens) == (tenant, tokens)]
        own = [e for e in self.entries if e.tenant == tenant]
        num_own = len(set().union(entry.blocks(), *(e.blocks() for e in own)))
        num_all = len(set().union(entry.blocks(), *(e.blocks() for e in self.entries)))
        is_refused = num_all > NUM_BLOCKS // 2 or (most is not None and (num_own > most or len(own) >= most))
        if same:
            assert self.book.keep(order).prefix_id == same[0].prefix_id
            same[0].ends = self.now + same[0].ttl
        elif is_refused:
            with pytest.raises(PrefixBudgetError):
                self.book.keep(order)
        else:
            entry.prefix_id = self.book.keep(order).prefix_id
            self.entries.append(entry)

    @rule(tenant=TENANTS, tail=PROMPTS, public=st.booleans())
    def use(self, tenant: str, tail: list[int], public: bool) -> None:
        self._compute([7 if public else 8, *tail], Namespace("m", tenant), 0)

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), tenant=TENANTS, is_admin=st.booleans())
    def delete(self, data: st.DataObject, tenant: str, is_admin: bool) -> None:
        entry = data.draw(st.sampled_from(self.entries))
        if self._may_change(entry, tenant, is_admin, self.book.delete):
            self.entries.remove(entry)
            self.gone.append(entry.prefix_id)

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), tenant=TENANTS, is_admin=st.booleans(), ttl=TTLS)
    def update(self, data: st.DataObject, tenant: str, is_admin: bool, ttl: float) -> None:
        entry = data.draw(st.sampled_from(self.entries))
        if self._may_change(entry, tenant, is_admin, self.book.update, ttl_seconds=ttl):
            entry.ttl, entry.ends = ttl, self.now + ttl

    @rule(seconds=st.sampled_from([1.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._end_due()

    @rule()
    def reset(self) -> None:
        self.cache.reset()
        self.gone += [entry.prefix_id for entry in self.entries]
        self.entries.clear()

    @rule()
    def restart(self) -> None:
        """Another book over the same cache takes over from the records."""
        records = self.book.records()
        for entry in list(self.entries):
            self.book.delete(entry.prefix_id, tenant=entry.tenant)
        self.book = PrefixBook(self.cache, clock=lambda: self.now)
        assert self.book.restore(records, model="m") == len(records) == len(self.entries)

    @invariant()
    def it_knows_what_it_ought_to(self) -> None:
        self.book.check()
        for tenant in ("t", "u"):
            own = [entry for entry in self.entries if entry.tenant == tenant]
            prefixes, has_more = self.book.page(tenant, after_ns=-1, size=1000)
            assert not has_more
            assert [(p.prefix_id, p.label, p.ttl_seconds, p.seconds_left, p.public) for p in prefixes] == [
                (e.prefix_id, e.label, e.ttl, e.ends - self.now, e.public) for e in own
            ]
            blocks: set[tuple[str, bytes]] = set().union(*(entry.blocks() for entry in own))
            assert self.book.num_pinned_blocks().get(tenant, 0) == len(blocks)
        everything: set[tuple[str, bytes]] = set().union(*(entry.blocks() for entry in self.entries))
        assert self.cache.stats().num_pinned == len(everything)

    @invariant()
    def what_has_gone_is_not_found(self) -> None:
        for prefix_id in self.gone[-3:]:
            with pytest.raises(NotFoundError):
                self.book.get(prefix_id, tenant="t", sees_all=True)

    def _compute(self, tokens: list[int], namespace: Namespace, num_public_tokens: int) -> None:
        """One request from its beginning to its end; it renews what it begins with."""
        handle = self.cache.acquire(tokens, namespace, num_public_tokens=num_public_tokens)
        self.cache.complete_copies(handle)
        self.cache.publish(handle, len(tokens), include_tail=True)
        self.cache.release(handle)
        for entry in self.entries:
            kept = entry.tokens[: len(entry.tokens) // BLOCK_SIZE * BLOCK_SIZE]
            reads = entry.public or entry.tenant == namespace.tenant
            if reads and tokens[: len(kept)] == kept:
                entry.ends = self.now + entry.ttl

    def _may_change(self, entry: Entry, tenant: str, is_admin: bool, change: Any, **options: Any) -> bool:
        if is_admin or entry.tenant == tenant:
            change(entry.prefix_id, tenant=tenant, sees_all=is_admin, **options)
            return True
        with pytest.raises(PermissionDeniedError if entry.public else NotFoundError):
            change(entry.prefix_id, tenant=tenant, sees_all=is_admin, **options)
        return False

    def _end_due(self) -> None:
        due = [entry for entry in self.entries if entry.ends <= self.now]
        self.gone += [entry.prefix_id for entry in due]
        self.entries = [entry for entry in self.entries if entry not in due]


BookMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestBookMachine = BookMachine.TestCase
