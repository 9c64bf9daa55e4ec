"""Sampling, log-probabilities and stops through the engine: cached, chunked, preempted, forked."""

import pytest
import torch
from support.dense_attention import dense_logits
from support.hand_engine import GREEDY, HandEngine, reference, reference_model, stream
from support.recording_model import RecordingModel
from support.sampling_oracle import adjusted_logits

from prefixcache_worker.engine.request import FinishReason, SamplingParams
from prefixcache_worker.model.scripted_model import ScriptedModel

PROMPT = stream("a", 40)
RICH = SamplingParams(
    temperature=1.0,
    top_p=0.95,
    top_k=200,
    min_p=0.001,
    repetition_penalty=1.2,
    presence_penalty=0.5,
    frequency_penalty=0.3,
    logit_bias=((5, 2.0), (6, -100.0)),
    seed=7,
)


def run(prompt=PROMPT, max_tokens=40, **options):
    """(tokens, text, log-probabilities) of one request on an engine of its own."""
    limits = {name: options.pop(name) for name in ("max_batch_tokens", "num_blocks") if name in options}
    hand = HandEngine(**limits)
    request_id = hand.add(prompt, max_tokens, **options)
    hand.run()
    return hand.tokens(request_id), hand.logprobs(request_id), hand.prompt_logprobs[request_id]


def assert_close(scores, expected):
    assert [score and score.top_token_ids for score in scores] == [e and e.top_token_ids for e in expected]
    for score, wanted in zip(scores, expected, strict=True):
        assert (score is None) == (wanted is None)
        if score is not None:
            assert (score.logprob, *score.top_logprobs) == pytest.approx(
                (wanted.logprob, *wanted.top_logprobs), abs=1e-4
            )


@pytest.mark.parametrize("sampling", [SamplingParams(seed=7), RICH], ids=["plain", "rich"])
def test_b15_a_preempted_answer_goes_on_as_if_nothing_had_been(sampling):
    expected, expected_logprobs, _ = run(sampling=sampling, logprobs=2)
    hand = HandEngine()
    request_id = hand.add(PROMPT, 40, sampling=sampling, logprobs=2)
    for num_before in (7, 23):
        while len(hand.tokens(request_id)) < num_before:
            hand.step()
        hand.engine.preempt(request_id)
    hand.run()
    assert hand.tokens(request_id) == expected
    assert_close(hand.logprobs(request_id), expected_logprobs)
    assert len(hand.logprobs(request_id)) == 40
    usage = hand.completions[request_id].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (40, 40)
    assert hand.engine.stats().requests.preemptions == 2


@pytest.mark.parametrize("chunk", [3, 7, 16, 64])
@pytest.mark.parametrize("num_cached", [0, 16, 39])
def test_penalties_count_the_whole_prompt_cached_or_not(chunk, num_cached):
    expected, _, _ = run(sampling=RICH)
    hand = HandEngine(max_batch_tokens=chunk)
    if num_cached:
        hand.generate(PROMPT[:num_cached] + stream("b", 8))
    others = [hand.add(stream(name, 20), 30, sampling=SamplingParams(seed=1)) for name in "cd"]
    request_id = hand.add(PROMPT, 40, sampling=RICH)
    hand.run()
    assert hand.num_cached(request_id) == num_cached
    assert hand.tokens(request_id) == expected
    assert all(len(hand.tokens(other)) == 30 for other in others)


def test_greedy_with_penalties_is_the_likeliest_adjusted_logit():
    """Against the oracle, step by step, with the logits that the model gave."""
    params = SamplingParams(
        temperature=0,
        repetition_penalty=1.5,
        presence_penalty=1.0,
        frequency_penalty=0.5,
        logit_bias=((9, 3.0),),
    )
    model = RecordingModel(reference_model())
    hand = HandEngine(model=model)
    tokens = hand.generate(PROMPT, 30, sampling=params)
    for position, logits in enumerate(model.logits):
        wanted = adjusted_logits(logits[0].tolist(), params, prompt=PROMPT, output=tokens[:position])
        assert wanted[tokens[position]] == pytest.approx(max(wanted), abs=1e-4)
    assert tokens != reference(PROMPT, 30)


def test_b114_choices_of_a_seed_are_those_of_their_index():
    """One computation of the prompt, four different answers, the same four again; n = 1 is choice 0."""
    sampling = SamplingParams(temperature=1.5, seed=1)
    runs = []
    for _ in range(2):
        hand = HandEngine()
        four = hand.add(PROMPT, 30, n=4, sampling=sampling)
        hand.run()
        runs.append([hand.tokens(four, index) for index in range(4)])
    assert runs[0] == runs[1]
    assert len({tuple(tokens) for tokens in runs[0]}) == 4
    assert run(max_tokens=30, sampling=sampling)[0] == runs[0][0]


@pytest.mark.parametrize("num_cached", [0, 16, 48, 64])
@pytest.mark.parametrize("chunk", [7, 16, 33])
def test_b130_output_logprobs_do_not_shift(chunk, num_cached):
    prompt = stream("a", 70)
    expected, expected_scores, _ = run(prompt, 20, logprobs=2)
    hand = HandEngine(max_batch_tokens=chunk)
    if num_cached:
        hand.generate(prompt[:num_cached] + stream("b", 8))
    request_id = hand.add(prompt, 20, logprobs=2)
    hand.run()
    assert hand.num_cached(request_id) == num_cached
    assert hand.tokens(request_id) == expected
    scores = hand.logprobs(request_id)
    assert_close(scores, expected_scores)
    assert len(scores) == 20
    for token, score in zip(hand.tokens(request_id), scores, strict=True):
        assert score.top_token_ids[0] == token  # greedy
        assert score.top_logprobs[0] == score.logprob
    assert sum(s.logprob for s in scores) == pytest.approx(sum(s.logprob for s in expected_scores), abs=1e-3)


def test_logprobs_are_of_the_raw_logits_whatever_sampling_does():
    model = RecordingModel(reference_model())
    hand = HandEngine(model=model)
    request_id = hand.add(PROMPT, 10, sampling=RICH, logprobs=0)
    hand.run()
    raw = torch.cat(model.logits).log_softmax(1)
    expected = [raw[i, token].item() for i, token in enumerate(hand.tokens(request_id))]
    assert [score.logprob for score in hand.logprobs(request_id)] == pytest.approx(expected, abs=1e-6)
    assert all(score.top_token_ids == () for score in hand.logprobs(request_id))


def test_only_those_who_ask_get_logprobs():
    hand = HandEngine()
    without, with_two = hand.add(PROMPT, 5), hand.add(stream("b", 20), 5, logprobs=2, n=2)
    hand.run()
    assert (len(hand.logprobs(without)), hand.prompt_logprobs[without]) == (0, [])
    assert [len(hand.logprobs(with_two, index)) for index in range(2)] == [5, 5]


LONG_PROMPT = stream("a", 117)


def dense_prompt_logprobs(prompt):
    logprobs = dense_logits(reference_model(), prompt).log_softmax(1)
    return [logprobs[i, token].item() for i, token in enumerate(prompt[1:])]


@pytest.mark.parametrize("chunk", [1, 16, 50, 512])
def test_prompt_logprobs_are_the_dense_models(chunk):
    _, _, scores = run(LONG_PROMPT, 1, prompt_logprobs=3, max_batch_tokens=chunk)
    assert scores[0] is None
    assert [score.logprob for score in scores[1:]] == pytest.approx(
        dense_prompt_logprobs(LONG_PROMPT), abs=1e-4
    )
    assert all(len(score.top_token_ids) == 3 for score in scores[1:])


def test_b50_prompt_logprobs_on_a_hit_are_those_of_the_cold_run():
    """Rows that the cache has no logits of are computed again, and the request says so."""
    _, _, cold = run(LONG_PROMPT, 1, prompt_logprobs=1)
    hand = HandEngine()
    hand.generate(LONG_PROMPT[:112])
    first = hand.add(LONG_PROMPT, 1, prompt_logprobs=1)
    hand.run()
    for name in "bcd":
        hand.generate(stream(name, 117))
    second = hand.add(LONG_PROMPT, 1, prompt_logprobs=1)
    hand.run()
    for request_id in (first, second):
        assert len(hand.prompt_logprobs[request_id]) == 117
        assert hand.prompt_logprobs[request_id][0] is None
        assert_close(hand.prompt_logprobs[request_id], cold)
        usage = hand.completions[request_id].usage
        assert (usage.cached_tokens, usage.computed_tokens) == (0, 117)
    assert hand.prompt_logprobs[first] == hand.prompt_logprobs[second]


def test_a_prompt_that_was_scored_is_in_the_cache_for_others():
    hand = HandEngine()
    hand.generate(LONG_PROMPT, prompt_logprobs=0)
    after = hand.add(LONG_PROMPT, 4)
    hand.run()
    assert hand.num_cached(after) == 116
    assert hand.tokens(after) == reference(LONG_PROMPT, 4)


@pytest.mark.parametrize("num_steps", [1, 3, 7, 9])
def test_prompt_logprobs_come_once_however_often_the_prompt_is_computed(num_steps):
    """Preempted while prefilling or later: what was scored may come from the cache, the rest may not."""
    _, _, cold = run(LONG_PROMPT, 4, prompt_logprobs=2)
    hand = HandEngine(max_batch_tokens=16)
    request_id = hand.add(LONG_PROMPT, 4, prompt_logprobs=2)
    for _ in range(num_steps):
        hand.step()
    hand.engine.preempt(request_id)
    hand.step()
    hand.engine.preempt(request_id)
    hand.run()
    assert_close(hand.prompt_logprobs[request_id], cold)
    assert hand.tokens(request_id) == reference(LONG_PROMPT, 4)
    assert hand.num_cached(request_id) == 0


def test_prompt_logprobs_go_on_where_they_were_when_the_rows_are_lost():
    """Rows of tokens that were scored before, and are computed again, get no logits."""
    model = RecordingModel(reference_model())
    hand = HandEngine(max_batch_tokens=16, model=model)
    request_id = hand.add(LONG_PROMPT, 1, prompt_logprobs=0)
    for _ in range(4):
        hand.step()
    hand.engine.preempt(request_id)
    hand.cache.reset()
    model.clear()
    hand.run()
    assert [len(batch.token_ids) for batch in model.batches] == [16] * 7 + [5]
    assert [len(batch.logit_rows) for batch in model.batches] == [0, 0, 0, 0, 16, 16, 16, 5]
    _, _, cold = run(LONG_PROMPT, 1, prompt_logprobs=0)
    assert_close(hand.prompt_logprobs[request_id], cold)


def test_prompt_logprobs_come_once_for_all_choices_and_for_a_single_token():
    hand = HandEngine()
    three = hand.add(PROMPT, 3, prompt_logprobs=0, n=3)
    single = hand.add([5], 3, prompt_logprobs=4)
    hand.run()
    assert len(hand.prompt_logprobs[three]) == 40
    assert hand.prompt_logprobs[single] == [None]
    assert hand.tokens(single) == reference([5], 3)


def test_b137_a_scored_prompt_bypasses_the_cache_and_is_no_miss():
    hand = HandEngine()
    for _ in range(10):
        hand.generate(PROMPT, prompt_logprobs=1)
    usage = hand.cache.usage("t")
    assert (usage.num_requests, usage.num_prompt_tokens, usage.num_bypassed) == (0, 0, 10)


@pytest.mark.parametrize("is_preempted", [False, True])
@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 2, 15, 16, 17, 33])
def test_b128_exactly_max_tokens(max_tokens, is_warm, is_preempted):
    hand = HandEngine()
    if is_warm:
        hand.generate(PROMPT)
    request_id = hand.add(PROMPT, max_tokens)
    if is_preempted:
        hand.step()
        if hand.engine.has_work:
            hand.engine.preempt(request_id)
    hand.run()
    assert hand.tokens(request_id) == reference(PROMPT, max_tokens)
    assert hand.completions[request_id].usage.completion_tokens == max_tokens
    assert hand.finish_reason(request_id) is FinishReason.LENGTH


EOS = 2
LETTERS = "abcdefgh"


def scripted(script: str, **options):
    """Run a model that says these letters, as tokens 10, 11, ..., then the end of text."""
    model = ScriptedModel([10 + LETTERS.index(c) for c in script], vocabulary_size=30, eos_token_id=EOS)
    hand = HandEngine(
        model=model,
        eos_token_ids=(EOS,),
        token_bytes=lambda token: LETTERS[token - 10].encode() if token >= 10 else b"</s>",
    )
    request_id = hand.add([5, 6], options.pop("max_tokens", 20), **options)
    hand.run()
    last = hand.deltas[request_id][-1]
    return hand.text(request_id), len(hand.tokens(request_id)), last.finish_reason, last.stop_reason


STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("abcdab", 7, STOP, None)),
        ({"max_tokens": 6}, ("abcdab", 6, LENGTH, None)),
        ({"stop_token_ids": (12, 13)}, ("ab", 3, STOP, 12)),
        ({"stop_token_ids": (12, 13), "include_stop": True}, ("abc", 3, STOP, 12)),
        ({"stop_token_ids": (EOS,)}, ("abcdab", 7, STOP, EOS)),
        ({"stop_token_ids": (29,)}, ("abcdab", 7, STOP, None)),
        ({"stop": ("cd", "d")}, ("ab", 4, STOP, "cd")),
        ({"stop": ("cd", "d"), "include_stop": True}, ("abcd", 4, STOP, "cd")),
        ({"stop": ("xyz", "ab"), "min_tokens": 3}, ("abcd", 6, STOP, "ab")),
        ({"stop": ("ab",), "min_tokens": 3, "include_stop": True}, ("abcdab", 6, STOP, "ab")),
        ({"stop": ("bc",), "stop_token_ids": (12,)}, ("ab", 3, STOP, 12)),
        ({"stop": ("bc",), "stop_token_ids": (12,), "include_stop": True}, ("abc", 3, STOP, "bc")),
        ({"stop": ("cx",), "stop_token_ids": (13,)}, ("abc", 4, STOP, 13)),
        ({"stop": ("abx",), "max_tokens": 6}, ("abcdab", 6, LENGTH, None)),
        ({"include_stop": True}, ("abcdab</s>", 7, STOP, None)),
    ],
    ids=str,
)
def test_what_ends_an_answer_and_how(options, expected):
    assert scripted("abcdab", **options) == expected


def test_min_tokens_keeps_the_ending_tokens_from_being_chosen():
    """The model would end after two tokens; it is held to its next choice until it may."""
    text, num_tokens, reason, stop_reason = scripted("ab", min_tokens=5, stop_token_ids=(0, 1, 3))
    assert (num_tokens, reason, stop_reason) == (6, STOP, None)
    assert text.startswith("ab")
    assert scripted("ab", min_tokens=2)[1:] == (3, STOP, None)
    assert scripted("ab", min_tokens=20, max_tokens=4)[1:] == (4, LENGTH, None)


def test_min_tokens_survives_a_preemption():
    model = ScriptedModel([], vocabulary_size=30, eos_token_id=EOS)
    hand = HandEngine(model=model, eos_token_ids=(EOS,))
    request_id = hand.add([5, 6], 20, min_tokens=6, sampling=GREEDY)
    for _ in range(4):
        hand.step()
    hand.engine.preempt(request_id)
    hand.run()
    assert len(hand.tokens(request_id)) == 7
    assert EOS not in hand.tokens(request_id)[:6]


@pytest.mark.parametrize("scheme", ["shared", "paged", "contiguous"])
def test_prompt_logprobs_are_the_same_in_every_scheme(scheme):
    hand = HandEngine(scheme=scheme, num_blocks=64, context_length=128, max_batch_tokens=16)
    first, second = (hand.add(PROMPT, 5, prompt_logprobs=2, sampling=RICH, n=n) for n in (1, 3))
    hand.step()
    hand.step()
    hand.engine.preempt(first)
    hand.run()
    expected_tokens, _, expected = run(max_tokens=5, prompt_logprobs=2, sampling=RICH)
    for request_id in (first, second):
        assert_close(hand.prompt_logprobs[request_id], expected)
        assert hand.tokens(request_id) == expected_tokens
