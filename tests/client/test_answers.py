"""Answers: what messages become in Python."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_worker import completion, delta

from prefixcache.v1 import cache_pb2, diagnosis_pb2, inference_pb2
from prefixcache_client import (
    BlocksRemoved,
    BlocksStored,
    BlockStats,
    CacheCleared,
    Choice,
    Completion,
    CreatedPrefix,
    Delta,
    Divergence,
    Event,
    EvictionStats,
    Explanation,
    FinishReason,
    IndexCheck,
    LatencyStats,
    LayoutTime,
    MachineSpeed,
    MissCause,
    ModelInfo,
    PoolLayout,
    Prefix,
    PrefixCacheClientError,
    ProfiledOperation,
    PromptLogprobs,
    RequestStats,
    SavedSnapshot,
    StateComplete,
    Stats,
    StepFault,
    StepFinding,
    StepProfile,
    StepRecord,
    TenantUsage,
    TensorPlace,
    TierStats,
    Timing,
    TokenLogprobs,
    TokenStats,
    Tree,
    TreeNode,
    Usage,
    WorkerSettings,
)
from prefixcache_client.answers import event_from_proto, generation_from_events, model_info_from_proto
from prefixcache_client.cache_answers import stats_from_proto, tree_from_proto
from prefixcache_client.cache_events import cache_event_from_proto
from prefixcache_client.diagnosis_answers import step_from_proto
from prefixcache_client.explanation import explanation_from_proto

END = Completion(
    request_id="r1",
    usage=Usage(prompt_tokens=10, cached_tokens=4, computed_tokens=6, completion_tokens=2),
    timing=Timing(queue_seconds=0.25, first_token_seconds=0.5, total_seconds=1.0),
)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Delta, inference_pb2.Delta),
        (TokenLogprobs, inference_pb2.TokenLogprobs),
        (PromptLogprobs, inference_pb2.PromptLogprobs),
        (Usage, inference_pb2.Usage),
        (Timing, inference_pb2.Timing),
        (Completion, inference_pb2.Completion),
        (ModelInfo, inference_pb2.GetModelInfoResponse),
        (BlockStats, cache_pb2.BlockStats),
        (TokenStats, cache_pb2.TokenStats),
        (RequestStats, cache_pb2.RequestStats),
        (Stats, cache_pb2.GetStatsResponse),
        (TierStats, cache_pb2.TierStats),
        (LatencyStats, cache_pb2.LatencyStats),
        (EvictionStats, cache_pb2.EvictionStats),
        (TreeNode, cache_pb2.TreeNode),
        (SavedSnapshot, cache_pb2.SnapshotResponse),
        (Tree, cache_pb2.DumpTreeResponse),
        (Divergence, cache_pb2.Divergence),
        (Prefix, cache_pb2.Prefix),
        (CreatedPrefix, cache_pb2.CreatePrefixResponse),
        (TenantUsage, cache_pb2.TenantUsage),
        (WorkerSettings, diagnosis_pb2.GetSettingsResponse),
        (PoolLayout, diagnosis_pb2.GetLayoutResponse),
        (TensorPlace, diagnosis_pb2.TensorPlace),
        (StepRecord, diagnosis_pb2.WatchStepsResponse),
        (StepFinding, diagnosis_pb2.StepFinding),
        (IndexCheck, diagnosis_pb2.CheckIndexesResponse),
        (StepProfile, diagnosis_pb2.StepProfile),
        (ProfiledOperation, diagnosis_pb2.ProfiledOperation),
        (MachineSpeed, diagnosis_pb2.MeasureMachineResponse),
        (LayoutTime, diagnosis_pb2.LayoutTime),
    ],
)
def test_every_field_of_a_message_has_its_place(value: Any, message: Any) -> None:
    oneofs = {field.name: oneof.name for oneof in message.DESCRIPTOR.oneofs for field in oneof.fields[1:]}
    firsts = {
        oneof.fields[0].name: oneof.name for oneof in message.DESCRIPTOR.oneofs if len(oneof.fields) > 1
    }
    names = [field.name for field in message.DESCRIPTOR.fields if field.name not in oneofs]
    assert [field.name for field in fields(value)] == [firsts.get(name, name) for name in names]


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (inference_pb2.FINISH_REASON_UNSPECIFIED, None),
        (inference_pb2.FINISH_REASON_STOP, FinishReason.STOP),
        (inference_pb2.FINISH_REASON_LENGTH, FinishReason.LENGTH),
    ],
)
def test_a_delta_keeps_text_ids_and_finish_reason(proto: int, reason: FinishReason | None) -> None:
    assert event_from_proto(delta("hé", 3, 4, index=2, finish=proto)) == Delta(2, "hé", (3, 4), reason)


@pytest.mark.parametrize(
    ("stop", "reason"),
    [({}, None), ({"stop_text": ""}, ""), ({"stop_text": "é"}, "é"), ({"stop_token_id": 0}, 0)],
)
def test_a_delta_keeps_what_stopped_it(stop: dict[str, Any], reason: str | int | None) -> None:
    response = inference_pb2.GenerateResponse(delta=inference_pb2.Delta(**stop))
    event = event_from_proto(response)
    assert isinstance(event, Delta)
    assert event.stop_reason == reason


SCORES = (
    TokenLogprobs(-0.5, (7, 3), (-0.25, -0.5)),
    TokenLogprobs(0.0),
    TokenLogprobs(-8.0, (1,), (-0.125,)),
)
SCORE_MESSAGES = [
    inference_pb2.TokenLogprobs(logprob=s.logprob, top_token_ids=s.top_token_ids, top_logprobs=s.top_logprobs)
    for s in SCORES
]


def test_log_probabilities_of_prompt_and_answer_are_put_together() -> None:
    nothing = inference_pb2.TokenLogprobs()
    prompt = [[nothing, *SCORE_MESSAGES[:1]], SCORE_MESSAGES[1:]]
    responses = [
        *(
            inference_pb2.GenerateResponse(prompt_logprobs=inference_pb2.PromptLogprobs(logprobs=part))
            for part in prompt
        ),
        inference_pb2.GenerateResponse(
            delta=inference_pb2.Delta(text="a", token_ids=[4, 5], logprobs=SCORE_MESSAGES[:2])
        ),
        inference_pb2.GenerateResponse(
            delta=inference_pb2.Delta(
                text="b",
                token_ids=[6],
                logprobs=SCORE_MESSAGES[2:],
                finish_reason=inference_pb2.FINISH_REASON_STOP,
                stop_token_id=6,
            )
        ),
        completion(),
    ]

    generation = generation_from_events(map(event_from_proto, responses))

    assert generation.prompt_logprobs == (None, *SCORES)
    assert generation.choices == (Choice(0, "ab", (4, 5, 6), FinishReason.STOP, 6, SCORES),)


def test_a_completion_keeps_usage_and_timing() -> None:
    assert event_from_proto(completion()) == END


@given(st.data())
def test_choices_are_put_together_whatever_their_order(data: st.DataObject) -> None:
    pieces = data.draw(
        st.lists(st.lists(st.tuples(st.text(), st.lists(st.integers(0, 9))), min_size=1), min_size=1)
    )
    streams = [
        [Delta(i, text, tuple(ids)) for text, ids in choice[:-1]]
        + [Delta(i, choice[-1][0], tuple(choice[-1][1]), FinishReason.LENGTH)]
        for i, choice in enumerate(pieces)
    ]
    events: list[Event] = []
    while any(streams):
        events.append(data.draw(st.sampled_from([stream for stream in streams if stream])).pop(0))

    generation = generation_from_events([*events, END])

    assert generation.choices == tuple(
        Choice(
            i,
            "".join(text for text, _ in choice),
            tuple(token_id for _, ids in choice for token_id in ids),
            FinishReason.LENGTH,
        )
        for i, choice in enumerate(pieces)
    )
    assert generation.text == generation.choices[0].text
    assert (generation.request_id, generation.usage, generation.timing) == ("r1", END.usage, END.timing)


def test_an_answer_without_its_completion_is_an_error() -> None:
    with pytest.raises(PrefixCacheClientError, match="without its completion"):
        generation_from_events([Delta(0, "a", (1,), FinishReason.STOP)])


def test_a_choice_without_finish_reason_is_an_error() -> None:
    with pytest.raises(PrefixCacheClientError, match="choice 1 ended without a finish reason"):
        generation_from_events([Delta(0, "a", (1,), FinishReason.STOP), Delta(1, "b", (2,)), END])


def test_model_stats_and_tree_keep_their_values() -> None:
    model = model_info_from_proto(
        inference_pb2.GetModelInfoResponse(name="m", num_layers=30, eos_token_ids=[2, 7], device="cpu")
    )
    stats = stats_from_proto(
        cache_pb2.GetStatsResponse(
            blocks=cache_pb2.BlockStats(total=8, idle=3),
            tokens=cache_pb2.TokenStats(cached=5),
            requests=cache_pb2.RequestStats(steps=9),
        )
    )
    tree = tree_from_proto(
        cache_pb2.DumpTreeResponse(
            nodes=[cache_pb2.TreeNode(id=1, public=True), cache_pb2.TreeNode(id=2)], num_left_out=7
        )
    )

    assert (model.name, model.num_layers, model.eos_token_ids, model.device) == ("m", 30, (2, 7), "cpu")
    assert (stats.blocks.total, stats.blocks.idle, stats.tokens.cached, stats.requests.steps) == (8, 3, 5, 9)
    assert [(node.id, node.public) for node in tree.nodes] == [(1, True), (2, False)]
    assert tree.num_left_out == 7


def test_every_cause_of_a_miss_has_its_name() -> None:
    for name, number in cache_pb2.MissCause.items():
        cause = explanation_from_proto(cache_pb2.ExplainResponse(cause=number)).cause
        expected = name.removeprefix("MISS_CAUSE_") if number else "UNKNOWN"
        assert cause.name == expected
    assert explanation_from_proto(cache_pb2.ExplainResponse(cause=99)).cause is MissCause.UNKNOWN  # type: ignore[arg-type]


def test_every_fault_of_a_step_has_its_name() -> None:
    def fault_of(number: Any) -> StepFault:
        response = diagnosis_pb2.WatchStepsResponse(findings=[diagnosis_pb2.StepFinding(fault=number)])
        return step_from_proto(response).findings[0].fault

    for name, number in diagnosis_pb2.StepFault.items():
        assert fault_of(number).name == (name.removeprefix("STEP_FAULT_") if number else "UNKNOWN")
    assert fault_of(99) is StepFault.UNKNOWN


def test_every_field_of_an_explanation_has_its_place() -> None:
    names = {field.name for field in cache_pb2.ExplainResponse.DESCRIPTOR.fields}
    assert {field.name for field in fields(Explanation)} == names
    response = cache_pb2.ExplainResponse(
        num_prompt_tokens=9,
        num_cached_tokens=4,
        divergence=cache_pb2.Divergence(position=4, prompt_token=0, prompt_preview="ab", cached_preview="a"),
        summary="so",
        held_by_tenant="b",
    )
    explanation = explanation_from_proto(response)
    assert explanation.divergence == Divergence(
        position=4, prompt_token=0, cached_token=None, prompt_preview="ab", cached_preview="a"
    )
    assert (explanation.num_prompt_tokens, explanation.num_cached_tokens) == (9, 4)
    assert (explanation.summary, explanation.held_by_tenant) == ("so", "b")
    response.divergence.cached_token = 0
    again = explanation_from_proto(response).divergence
    assert again is not None
    assert again.cached_token == 0
    assert explanation_from_proto(cache_pb2.ExplainResponse()).divergence is None


@pytest.mark.parametrize(
    ("value", "message", "field"),
    [
        (BlocksStored, cache_pb2.BlocksStored, "stored"),
        (BlocksRemoved, cache_pb2.BlocksRemoved, "removed"),
        (CacheCleared, cache_pb2.CacheCleared, "cleared"),
        (StateComplete, cache_pb2.StateComplete, "state_complete"),
    ],
)
def test_every_kind_of_event_has_its_class(value: Any, message: Any, field: str) -> None:
    names = [field.name for field in message.DESCRIPTOR.fields]
    assert [field.name for field in fields(value)] == ["sequence_number", *names]
    response = cache_pb2.WatchEventsResponse(sequence_number=2**63, **{field: message()})
    event = cache_event_from_proto(response)
    assert type(event) is value
    assert event.sequence_number == 2**63


def test_an_event_keeps_its_values_and_an_unknown_one_is_an_error() -> None:
    stored = cache_pb2.BlocksStored(parent_key=b"p", block_keys=[b"a", b"b"], token_ids=[1, 2], public=True)
    response = cache_pb2.WatchEventsResponse(sequence_number=5, stored=stored)
    assert cache_event_from_proto(response) == BlocksStored(
        sequence_number=5, parent_key=b"p", block_keys=(b"a", b"b"), token_ids=(1, 2), public=True
    )
    kinds = cache_pb2.WatchEventsResponse.DESCRIPTOR.oneofs_by_name["event"].fields
    assert len(kinds) == 4
    with pytest.raises(PrefixCacheClientError, match="event 5 is of a kind"):
        cache_event_from_proto(cache_pb2.WatchEventsResponse(sequence_number=5))
