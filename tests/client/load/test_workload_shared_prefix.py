"""Groups and users: who shares how much with whom."""

from __future__ import annotations

from itertools import combinations, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sent_sessions import num_cached_tokens, num_common, sent_prompts

from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.load.workloads import Amount, PromptTooLongError, SharedPrefix

SERVER = {"vocabulary_size": 49_152, "context_length": 8192, "block_size": 16}


@st.composite
def workloads(draw: st.DrawFn) -> SharedPrefix:
    least = draw(st.integers(2, 40))
    workload = SharedPrefix(
        groups=draw(st.integers(1, 4)),
        users=draw(st.integers(1, 6)),
        common_tokens=draw(st.integers(0, 40)),
        prefix_tokens=Amount.uniform(least, least + draw(st.integers(0, 40))),
        suffix_tokens=draw(st.sampled_from([Amount.fixed(1), Amount.uniform(1, 9), Amount.lognormal(8, 1)])),
        diverging=draw(st.sampled_from([0.0, 0.5, 1.0])),
        tenants=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 99)),
    )
    return workload.fitted_to(
        {"vocabulary_size": draw(st.sampled_from([64, 49_152])), "block_size": draw(st.sampled_from([4, 16]))}
    )


@settings(max_examples=60)
@given(workloads())
def test_users_share_what_they_declare_and_groups_only_what_is_common(workload: SharedPrefix) -> None:
    """A user's public tokens are exactly those that it has in common with its group."""
    prompts = [
        (number % workload.groups, session.public_tokens, session.turns[0].prompt)
        for number, session in enumerate(workload.sessions())
    ]

    assert len(prompts) == workload.num_sessions
    for (group, num_shared, prompt), (other_group, other_shared, other) in combinations(prompts, 2):
        expected = min(num_shared, other_shared) if group == other_group else workload.common_tokens
        assert num_common(prompt, other) == expected


@settings(max_examples=60)
@given(workloads())
def test_divergence_is_inside_blocks_and_changes_no_length(workload: SharedPrefix) -> None:
    least = workload.common_tokens + round(workload.prefix_tokens.least)
    for session in workload.sessions():
        assert len(session.turns[0].prompt) >= least + round(workload.suffix_tokens.least)
        if workload.diverging == 1 and session.public_tokens < least:
            assert session.public_tokens % workload.limits.block_size > 0
            assert session.public_tokens > workload.common_tokens


def test_the_share_of_users_that_diverge_is_the_one_asked_for() -> None:
    workload = SharedPrefix(users=2000, diverging=0.25, prefix_tokens=Amount.fixed(64)).fitted_to(SERVER)
    num_shared = [session.public_tokens for session in workload.sessions()]
    assert sum(tokens < 64 for tokens in num_shared) / 2000 == pytest.approx(0.25, abs=0.03)
    assert {tokens for tokens in num_shared if tokens < 64} == {at for at in range(1, 64) if at % 16}


@settings(max_examples=30)
@given(workloads())
def test_every_token_is_one_of_the_server(workload: SharedPrefix) -> None:
    stop = workload.limits.vocabulary_size
    for session in workload.sessions():
        assert all(min(100, stop // 2) <= token < stop for token in session.turns[0].prompt)


@pytest.mark.parametrize("private", [False, True])
def test_after_the_warm_up_every_user_has_its_prefix_cached(private: bool) -> None:
    """By the oracle: cached is the whole prefix, and not a token more."""
    workload = SharedPrefix(
        groups=2,
        users=6,
        tenants=3,
        prefix_tokens=Amount.fixed(48),
        suffix_tokens=Amount.fixed(8),
        private=private,
    ).fitted_to(SERVER)
    sent = [*sent_prompts(workload.warm_up())]
    num_warm = len(sent)
    sent += sent_prompts(workload.sessions())

    assert num_warm == (6 if private else 2)
    assert num_cached_tokens(sent, block_size=16)[num_warm:] == [48] * 12


def test_a_cold_start_sends_nothing_before() -> None:
    assert list(SharedPrefix(cold=True).warm_up()) == []


def test_without_a_number_of_users_there_is_no_end() -> None:
    workload = SharedPrefix(groups=3)
    assert workload.num_sessions is None
    first = [session.turns[0].prompt[0] for session in islice(workload.sessions(), 300)]
    assert len(set(first)) == 3


def test_as_messages_the_prefix_is_the_public_system_prompt() -> None:
    workload = SharedPrefix(
        prompt_form="messages", prefix_tokens=Amount.fixed(5), suffix_tokens=Amount.fixed(3)
    )
    one, other = islice(workload.sessions(), 2)
    (system, user), (same_system, other_user) = one.turns[0].prompt, other.turns[0].prompt
    assert [system["role"], user["role"]] == ["system", "user"]
    assert len(system["content"].split()) == 5
    assert len(user["content"].split()) == 3
    assert system == same_system
    assert user != other_user
    assert (one.public_messages, one.public_tokens) == (1, 0)


def test_as_text_equal_words_stand_for_equal_tokens() -> None:
    workload = SharedPrefix(prompt_form="text", prefix_tokens=Amount.fixed(5), suffix_tokens=Amount.fixed(3))
    one, other = (str(session.turns[0].prompt).split() for session in islice(workload.sessions(), 2))
    assert len(one) == len(other) == 8
    assert num_common(one, other) == 5  # type: ignore[arg-type]


def test_a_prefix_longer_than_the_context_is_refused_with_the_numbers() -> None:
    workload = SharedPrefix(prefix_tokens=Amount.uniform(100, 9000), suffix_tokens=Amount.fixed(10))
    with pytest.raises(PromptTooLongError) as error:
        workload.fitted_to(SERVER)
    assert str(error.value) == (
        "a prompt may be 9,010 tokens long and have 32 generated, but the server's context is 8,192: "
        "make it shorter"
    )
    assert (error.value.prompt_tokens, error.value.context_length) == (9010, 8192)


@pytest.mark.parametrize(("prefix", "block_size"), [(64, 1), (1, 16)])
def test_where_no_token_is_inside_a_block_nobody_can_diverge(prefix: int, block_size: int) -> None:
    workload = SharedPrefix(diverging=0.5, prefix_tokens=Amount.fixed(prefix))
    with pytest.raises(PrefixCacheClientError, match="no user can leave a prefix"):
        workload.fitted_to(SERVER | {"block_size": block_size})


def test_a_vocabulary_that_is_too_small_is_refused() -> None:
    with pytest.raises(
        PrefixCacheClientError, match="a vocabulary of 8 tokens; to tell prompts apart, at least 16"
    ):
        SharedPrefix().fitted_to({"vocabulary_size": 8})
