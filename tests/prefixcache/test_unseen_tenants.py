"""What a tenant is told and shown does not depend on what others keep for themselves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cache_runs import finish, run, start
from support.token_streams import stream

import prefixcache
from prefixcache import InvalidArgumentError, MissCause, Namespace, PrefixCache, pack_tokens

A, A_SALTED = Namespace("model", "a"), Namespace("model", "a", salt="pepper")
B, B_SALTED = Namespace("model", "b"), Namespace("model", "b", salt="pepper")
PUBLISHER = Namespace("model", "publisher", is_publisher=True)
S, P, Q = stream("s", 80), stream("p", 48), stream("q", 48)


class Run(NamedTuple):
    """One sequence, with nothing generated."""

    namespace: Namespace
    prompt: list[int]
    num_public_tokens: int = 0
    use_cache: bool = True
    is_held: bool = False
    """Whether it is still running when all else is over."""


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=14)
flags = st.booleans()
runs_of_a = st.builds(Run, st.sampled_from([A, A_SALTED]), prompts, st.just(0), flags, flags)
runs_of_b = st.builds(Run, st.sampled_from([B, B_SALTED]), prompts, st.just(0), flags, flags)
public_runs = prompts.flatmap(
    lambda prompt: st.builds(
        Run, st.just(PUBLISHER), st.just(prompt), st.integers(0, len(prompt)), flags, flags
    )
)


def perform(cache: PrefixCache, script: list[Run]) -> None:
    for namespace, prompt, num_public_tokens, use_cache, is_held in script:
        handle = cache.acquire(prompt, namespace, num_public_tokens=num_public_tokens, use_cache=use_cache)
        cache.complete_copies(handle)
        cache.publish(handle, len(prompt), include_tail=not is_held)
        if not is_held:
            cache.release(handle)


def shown_to_a(cache: PrefixCache, prompt: list[int], namespace: Namespace) -> dict[str, Any]:
    """All that tenant `a` can be told now, without ids of blocks."""
    return {
        "match": cache.match(prompt, namespace).num_tokens,
        "explanation": cache.explain(prompt, namespace, tells_of_others=False),
        "view": cache.view("a"),
        "upper levels": cache.view("a", max_depth=2, max_nodes=3),
    }


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(runs_of_a, runs_of_b, public_runs), max_size=12),
    prompts,
    st.sampled_from([A, A_SALTED]),
)
def test_nothing_that_a_tenant_is_shown_depends_on_what_is_anothers_alone(
    script: list[Run], prompt: list[int], namespace: Namespace
) -> None:
    with_b = PrefixCache(num_blocks=400, block_size=2)
    without_b = PrefixCache(num_blocks=400, block_size=2)
    perform(with_b, script)
    perform(without_b, [step for step in script if step.namespace.tenant != "b"])
    shown = shown_to_a(with_b, prompt, namespace)
    # A tombstone's tick numbers the requests of all; the servers tell nobody but an admin.
    assert _without_ticks(shown) == _without_ticks(shown_to_a(without_b, prompt, namespace))


def _without_ticks(shown: dict[str, Any]) -> list[object]:
    explanation = shown["explanation"]
    return [
        shown["match"],
        explanation.num_cached_tokens,
        explanation.divergence,
        explanation.cause,
        explanation.held_by,
        explanation.cached_token_ids,
        shown["view"],
        shown["upper levels"],
    ]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(runs_of_a, runs_of_b, public_runs), max_size=12))
def test_a_view_has_every_public_and_own_token_once_and_nobody_elses(script: list[Run]) -> None:
    cache = PrefixCache(num_blocks=400, block_size=2)
    perform(cache, script)
    view = cache.view("a")
    paths = {0: ((), True)}
    seen = set()
    for node in view.nodes:
        above, is_above_public = paths[node.parent_id]
        assert is_above_public or not node.public
        path = above + tuple(prefixcache.unpack_tokens(node.tokens))
        paths[node.id] = (path, node.public)
        assert (node.tenant, node.public) in {("", True), ("a", False)}
        assert node.last_used == 0
        seen |= {path[:end] for end in range(len(above) + 1, len(path) + 1)}
    dumped = {0: ()}
    expected = set()
    for node in cache.dump():
        dumped[node.id] = dumped[node.parent_id] + node.token_ids
        if node.public or node.tenant == "a":
            path = dumped[node.id]
            expected |= {path[:end] for end in range(len(path) - len(node.token_ids) + 1, len(path) + 1)}
    assert seen == expected
    everything = cache.view()
    assert [(node.id, node.parent_id, node.num_tokens, node.last_used) for node in everything.nodes] == [
        (node.id, node.parent_id, len(node.token_ids), node.last_used) for node in cache.dump()
    ]


def test_b_runs_between_the_public_nodes_of_a_view() -> None:
    """A private prompt that leaves a public run in its middle cuts the node; nobody else sees the cut."""
    cache = PrefixCache(num_blocks=40)
    run(cache, S, PUBLISHER, num_public_tokens=80)
    before = cache.view("a")
    run(cache, S[:32] + P, B)
    held = start(cache, S[:48], B)
    assert [node.num_tokens for node in before.nodes] == [80]
    assert cache.view("a") == before
    assert sorted(node.num_tokens for node in cache.view("b").nodes) == [32, 48, 48]
    assert max(node.num_readers for node in cache.view().nodes) == 1
    assert {node.num_readers for node in cache.view("b").nodes if node.public} == {0}
    finish(cache, held)


def test_own_nodes_are_shown_with_their_readers() -> None:
    cache = PrefixCache(num_blocks=40)
    run(cache, P, A)
    held = start(cache, P, A)
    nodes = cache.view("a").nodes
    assert [(node.tenant, node.num_blocks, node.num_live_blocks, node.num_readers) for node in nodes] == [
        ("a", 2, 2, 1),
        ("a", 1, 0, 0),
    ]
    finish(cache, held)
    assert cache.view("nobody").nodes == []


def test_a_view_is_cut_off_where_it_is_told_to_be() -> None:
    cache = PrefixCache(num_blocks=100)
    for first in range(8):
        run(cache, [first] * 16 + P[:16], A)
        run(cache, [first] * 16 + Q[:16], A)
    for tenant in ("a", None):
        whole = cache.view(tenant)
        assert (len(whole.nodes), whole.num_left_out) == (24, 0)
        cut = cache.view(tenant, max_nodes=10)
        assert (cut.nodes, cut.num_left_out) == (whole.nodes[:10], 14)
        top = cache.view(tenant, max_depth=1, max_nodes=10)
        assert (top.nodes, top.num_left_out) == (whole.nodes[:8], 0)
        assert cache.view(tenant, max_nodes=0) == ([], 24)
        with pytest.raises(InvalidArgumentError, match="max_depth is -1"):
            cache.view(tenant, max_depth=-1)


@pytest.mark.parametrize(
    ("owner", "prompt", "cause"),
    [
        (B, P, MissCause.NEVER_SEEN),
        (B_SALTED, P, MissCause.NEVER_SEEN),
        (Namespace("model@2", "a"), P, MissCause.NEVER_SEEN),
        (Namespace("model", "a", adapter="lora"), P, MissCause.NEVER_SEEN),
        (A_SALTED, P, MissCause.OTHER_SCOPE),
        (B, P[:20], MissCause.BELOW_BLOCK),
    ],
)
def test_what_others_have_reads_as_never_seen(owner: Namespace, prompt: list[int], cause: MissCause) -> None:
    cache = PrefixCache(num_blocks=40)
    run(cache, P[:16], A)
    run(cache, P, owner)
    explanation = cache.explain(prompt, A, tells_of_others=False)
    assert (explanation.num_cached_tokens, explanation.cause) == (16, cause)
    assert explanation.divergence == (16, P[16], None)
    told_all = cache.explain(prompt, A)
    assert told_all.num_cached_tokens == 16
    assert told_all.cause not in (MissCause.NEVER_SEEN, MissCause.BELOW_BLOCK) or len(prompt) < 32


def test_only_the_latest_salts_of_a_tenant_are_looked_into() -> None:
    cache = PrefixCache(num_blocks=400)
    for number in range(100):
        run(cache, [number] * 16, Namespace("model", "a", salt=f"salt {number}"))
    assert cache.explain([35] * 32, A, tells_of_others=False).cause is MissCause.NEVER_SEEN
    assert cache.explain([36] * 32, A, tells_of_others=False).cause is MissCause.OTHER_SCOPE
    assert cache.explain([35] * 32, A).cause is MissCause.OTHER_SCOPE


@contextmanager
def _lines_of_the_cache() -> Iterator[list[int]]:
    """Counts the lines of the package that are executed meanwhile."""
    folder, count = str(Path(prefixcache.__file__).parent), [0]

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(folder):
            return None
        if event == "line":
            count[0] += 1
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(former)


@pytest.mark.parametrize(
    "ask",
    [
        lambda cache, prompt: cache.match(pack_tokens(prompt), A),
        lambda cache, prompt: cache.explain(prompt, A, tells_of_others=False),
        lambda cache, prompt: cache.view("a"),
        lambda cache, prompt: perform(cache, [Run(A, prompt)]),
    ],
    ids=["match", "explain", "view", "serve"],
)
@pytest.mark.parametrize("prefix", [[], S], ids=["alone", "behind a public prefix"])
def test_a_foreign_private_prompt_takes_the_same_work_as_an_unseen_one(
    ask: Callable[[PrefixCache, list[int]], object], prefix: list[int]
) -> None:
    """Line by line: so no clock, however good, can tell one from the other."""
    counts = []
    crowd = [[token] * 32 for token in range(5000, 5100)]
    for foreign in (P, Q):
        cache = PrefixCache(num_blocks=1000)
        run(cache, S, PUBLISHER, num_public_tokens=80)
        run(cache, stream("a", 40), A)
        perform(
            cache, [Run(owner, prefix + tokens) for tokens in (foreign, *crowd) for owner in (B, B_SALTED)]
        )
        with _lines_of_the_cache() as count:
            ask(cache, prefix + P)
        counts.append(count[0])
    assert counts[0] == counts[1] > 10
