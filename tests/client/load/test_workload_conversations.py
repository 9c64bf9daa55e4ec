"""Chats and agents: what their turns share, by an oracle that has an endless cache."""

from __future__ import annotations

from itertools import combinations, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sent_sessions import num_cached_tokens, num_common, sent_prompts

from prefixcache_client.load.workloads import Agents, Amount, Chat, PromptTooLongError

SERVER = {"vocabulary_size": 49_152, "context_length": 8192, "block_size": 16}

chats = st.builds(
    Chat,
    conversations=st.integers(1, 5),
    turns=st.sampled_from([Amount.fixed(1), Amount.uniform(1, 4)]),
    system_tokens=st.integers(1, 40),
    user_tokens=st.sampled_from([Amount.fixed(1), Amount.uniform(2, 20)]),
    output_tokens=st.sampled_from([Amount.fixed(1), Amount.uniform(1, 9)]),
    tenants=st.integers(1, 3),
    private=st.booleans(),
    seed=st.integers(0, 99),
)
agents = st.builds(
    Agents,
    agents=st.integers(1, 3),
    sub_agents=st.integers(1, 3),
    system_tokens=st.integers(1, 40),
    task_tokens=st.just(Amount.uniform(2, 20)),
    part_tokens=st.just(Amount.uniform(1, 9)),
    tool_turns=st.just(Amount.uniform(0, 3)),
    tool_tokens=st.just(Amount.uniform(1, 9)),
    output_tokens=st.just(Amount.uniform(1, 9)),
    seed=st.integers(0, 99),
)


@settings(max_examples=60)
@given(chats)
def test_a_chats_turns_have_all_that_was_said_before(workload: Chat) -> None:
    """The first turn of a conversation finds the system prompt, every later one the conversation."""
    sent = list(sent_prompts(workload.fitted_to(SERVER).sessions()))
    seen: set[str | None] = set()
    before: dict[int, list[int]] = {}
    for request, num_cached in zip(sent, num_cached_tokens(sent, block_size=16), strict=True):
        if request.turn > 0:
            expected = len(before[request.session])
        elif request.tenant in seen:
            expected = workload.system_tokens
        else:
            expected = 0 if workload.private or not seen else workload.system_tokens // 16 * 16
        assert num_cached == min(expected, len(request.prompt) - 1)
        seen.add(request.tenant)
        before[request.session] = request.written


def test_the_first_message_stands_alone_and_the_others_continue() -> None:
    workload = Chat(conversations=3, turns=Amount.fixed(3), think_seconds=Amount.uniform(1, 2))
    for session in workload.sessions():
        assert [turn.continues for turn in session.turns] == [False, True, True]
        assert session.turns[0].think_seconds == 0
        assert all(1 <= turn.think_seconds <= 2 for turn in session.turns[1:])
        assert len(session.turns[0].prompt) >= 256 + 16


def test_a_conversation_of_messages_begins_with_the_system_prompt_alone() -> None:
    (session,) = Chat(conversations=1, turns=Amount.fixed(2), prompt_form="messages").sessions()
    roles = [[message["role"] for message in turn.prompt] for turn in session.turns]  # type: ignore[index]
    assert roles == [["system", "user"], ["user"]]


@settings(max_examples=60)
@given(agents)
def test_sub_agents_share_their_task_and_agents_their_tools(workload: Agents) -> None:
    sessions = list(workload.fitted_to(SERVER).sessions())
    assert len(sessions) == workload.num_sessions
    firsts = [(i // workload.sub_agents, session.turns[0].prompt) for i, session in enumerate(sessions)]
    for (agent, prompt), (other_agent, other) in combinations(firsts, 2):
        common = num_common(prompt, other)  # type: ignore[arg-type]
        if agent != other_agent:
            assert common == workload.system_tokens
        else:
            assert workload.system_tokens + 2 <= common <= workload.system_tokens + 20


@settings(max_examples=30)
@given(agents)
def test_a_sub_agents_tool_turns_have_its_conversation_cached(workload: Agents) -> None:
    sent = list(sent_prompts(workload.fitted_to(SERVER).sessions()))
    cached = num_cached_tokens(sent, block_size=16)
    for before, request, num_cached in zip(sent, sent[1:], cached[1:], strict=False):
        if request.turn > 0:
            assert num_cached == min(len(before.written), len(request.prompt) - 1)


def test_agents_begin_at_their_distance_and_their_sub_agents_at_once() -> None:
    workload = Agents(agents=3, sub_agents=2, apart_seconds=2.5, tenants=2)
    assert [session.seconds for session in workload.sessions()] == [0, 0, 2.5, 2.5, 5, 5]
    assert [session.tenant for session in workload.sessions()] == [
        *["bench-0"] * 2,
        *["bench-1"] * 2,
        *["bench-0"] * 2,
    ]


@pytest.mark.parametrize("workload", [Chat(), Agents()])
def test_without_a_number_there_is_no_end(workload: Chat | Agents) -> None:
    assert workload.num_sessions is None
    assert len(list(islice(workload.sessions(), 50))) == 50


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (
            Chat(system_tokens=100, turns=Amount.uniform(1, 10), user_tokens=Amount.fixed(50)),
            "a conversation of 10 turns may be 888 tokens long and have 32 generated, but",
        ),
        (
            Agents(system_tokens=300, task_tokens=Amount.fixed(100), tool_tokens=Amount.fixed(200)),
            "a sub-agent's last prompt may be 1,128 tokens long and have 32 generated, but",
        ),
    ],
)
def test_the_last_turn_must_fit_into_the_context(workload: Chat | Agents, message: str) -> None:
    with pytest.raises(PromptTooLongError) as error:
        workload.fitted_to({"context_length": 900})
    assert str(error.value).startswith(message)
    assert workload.fitted_to({"context_length": 1160}).limits.context_length == 1160
