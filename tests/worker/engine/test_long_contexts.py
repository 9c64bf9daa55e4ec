"""Windows that give back what they leave behind, windows put over a model, and sparse reads."""

import pytest
from support.dense_attention import dense_greedy
from support.hand_engine import HandEngine, reference, stream
from support.tiny_model import tiny_decoder

from prefixcache_worker.attention.approximation import Approximation
from prefixcache_worker.attention.sparse import SparseReads
from prefixcache_worker.model.model import AttentionWindow

WINDOW = 24
WINDOWED = tiny_decoder(windows=(AttentionWindow(WINDOW), AttentionWindow(WINDOW - 9)))
BACKENDS = ["torch", "auto"]


def used_blocks(hand: HandEngine) -> int:
    return hand.cache.stats().num_live


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_outside_every_window_are_given_back(backend):
    """However long the answer, the sequence holds what its widest window needs; freed blocks are NaN."""
    hand = HandEngine(model=WINDOWED, backend=backend, block_size=8)
    prompt = stream("a", 20)
    request_id = hand.add(prompt, 150)
    most = 0
    while hand.engine.has_work:
        hand.step()
        most = max(most, used_blocks(hand))
    assert most == 5  # 24 rows lie in up to four blocks, and the next is begun before the last goes
    assert hand.tokens(request_id) == dense_greedy(WINDOWED, prompt, 150)
    assert not hand.completions[request_id].usage.is_approximate


def test_a_layer_that_reads_everything_keeps_everything():
    model = tiny_decoder(windows=(AttentionWindow(WINDOW), None))
    hand = HandEngine(model=model, block_size=8)
    hand.add(stream("a", 20), 60)
    for _ in range(59):
        hand.step()
    assert used_blocks(hand) == 10
    hand.run()


@pytest.mark.parametrize("backend", BACKENDS)
def test_long_prompts_batches_choices_and_preemption_under_windows(backend):
    """Prefill in chunks beyond the window, a hit, n = 2 after rows were given back, and starting again."""
    hand = HandEngine(model=WINDOWED, backend=backend, block_size=8, max_batch_tokens=16)
    base = stream("a", 90)
    prompts = [base + stream(name, 5) for name in "bcd"]
    expected = [dense_greedy(WINDOWED, prompt, 40) for prompt in prompts]
    assert hand.generate(prompts[0], 40) == expected[0]
    first = hand.add(prompts[1], 40, n=2)
    second = hand.add(prompts[2], 40, use_cache=False)
    for _ in range(25):
        hand.step()
    hand.engine.preempt(first)
    hand.engine.preempt(second)
    hand.run()
    assert [hand.tokens(first, i) for i in range(2)] == [expected[1]] * 2
    assert hand.tokens(second) == expected[2]


def test_an_answer_that_fits_the_window_is_left_for_the_next_turn():
    hand = HandEngine(model=WINDOWED, block_size=8)
    prompt = stream("a", 9)
    answer = hand.generate(prompt, 6)
    follow_up = hand.add([*prompt, *answer, 700], 1)
    hand.run()
    assert hand.num_cached(follow_up) == 14


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_sinks", [0, 5])
def test_a_window_put_over_a_model_is_as_if_the_model_had_it(backend, num_sinks):
    window = AttentionWindow(WINDOW, num_sinks)
    hand = HandEngine(approximation=Approximation(window=window), backend=backend, block_size=8)
    model = tiny_decoder(windows=(window, window))
    short, long = stream("a", 10), stream("b", 50)
    ids = [hand.add(short, 8), hand.add(long, 60)]
    hand.run()
    assert [hand.tokens(request_id) for request_id in ids] == [
        dense_greedy(model, short, 8),
        dense_greedy(model, long, 60),
    ]
    assert hand.tokens(ids[0]) == reference(short, 8)
    assert [hand.completions[request_id].usage.is_approximate for request_id in ids] == [False, True]


def test_a_window_wider_than_the_models_own_changes_nothing():
    shape = WINDOWED.attention_shape
    assert Approximation(window=AttentionWindow(WINDOW)).shape(shape) == shape


@pytest.mark.parametrize("backend", BACKENDS)
def test_sparse_reads_leave_out_what_they_say(backend):
    """With room for all blocks the answer is exact, with less it is marked; rows read are counted."""
    prompt = stream("a", 100)
    exact = HandEngine(
        approximation=Approximation(sparse_reads=SparseReads(20)), backend=backend, block_size=8
    )
    request_id = exact.add(prompt, 20)
    exact.run()
    assert exact.tokens(request_id) == reference(prompt, 20)
    assert not exact.completions[request_id].usage.is_approximate

    sparse = HandEngine(
        approximation=Approximation(sparse_reads=SparseReads(6)), backend=backend, block_size=8
    )
    request_id = sparse.add(prompt, 20)
    short_id = sparse.add(stream("b", 20), 5)
    sparse.run()
    assert len(sparse.tokens(request_id)) == 20
    assert sparse.tokens(short_id) == reference(stream("b", 20), 5)
    assert sparse.completions[request_id].usage.is_approximate
    assert not sparse.completions[short_id].usage.is_approximate
    decoding = range(101, 120)  # lengths at which the long one decodes
    num_read = 100 + sum(5 * 8 + (length - 1) % 8 + 1 for length in decoding)
    num_read += 20 + sum(range(21, 25))
    assert sparse.engine.stats().tokens.kv_rows_read == num_read


def test_a_prompt_is_read_in_full_and_what_was_read_sparsely_is_shared_with_nobody():
    """A cached prompt gives the same first token as a cold one, and no later turn finds a sparse row."""
    prompt = stream("a", 100)
    hand = HandEngine(approximation=Approximation(sparse_reads=SparseReads(6)), block_size=8)
    answer = hand.generate(prompt, 20)
    again = hand.add(prompt, 1)
    hand.run()
    assert hand.tokens(again) == answer[:1] == reference(prompt, 1)
    assert not hand.completions[again].usage.is_approximate
    next_turn = hand.add([*prompt, *answer, 700], 1)
    hand.run()
    assert hand.num_cached(next_turn) == 100
    assert hand.tokens(next_turn) == reference([*prompt, *answer, 700], 1)


def test_a_window_that_leaves_nothing_out_does_not_mark_answers():
    hand = HandEngine(
        model=WINDOWED, approximation=Approximation(window=AttentionWindow(WINDOW)), block_size=8
    )
    request_id = hand.add(stream("a", 90), 4)
    hand.run()
    assert not hand.completions[request_id].usage.is_approximate
