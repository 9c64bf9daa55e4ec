"""Each fault does what its page says, to the last row, block and byte; without it nothing of it is there."""

from __future__ import annotations

import pytest
import torch
from support.broken_engine import MIXED_PROMPTS, CountedCopies, answer_mixed_prompts, hand_engine
from support.hand_engine import HandEngine, reference, stream
from support.tiny_loaded_model import loaded
from support.tiny_model import tiny_decoder

from prefixcache_worker.attention.kv_format import KvDtype, KvFormat, KvScales
from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.faults.planting import FAULTS, IN_ENGINE
from prefixcache_worker.model.model import AttentionWindow
from prefixcache_worker.server.build import assemble_worker

INT8 = KvFormat(KvDtype.INT8, KvScales.TOKEN_HEAD)
ROW_BYTES = 2 * 2 * 2 * 16 * 4  # of the tiny model: layers, keys and values, heads, elements, float32


def rows_read(hand: HandEngine) -> int:
    return hand.engine.stats().tokens.kv_rows_read


def decode_together(fault: str | None, *lengths: int, max_tokens: int = 5) -> tuple[HandEngine, int]:
    """Prompts with nothing in common, answered together: the engine, and bytes fetched for nothing."""
    hand = hand_engine(fault, max_batch_tokens=1024)  # so that all begin in one step
    for letter, length in zip("abcd", lengths, strict=False):
        hand.add(stream(letter, length), max_tokens, request_id=letter)
    with CountedCopies() as copies:
        hand.run()
    return hand, copies.num_bytes


def excess_rows(fault: str, *lengths: int) -> tuple[int, int]:
    """What the fault adds to the rows that are planned to be read, and to the bytes that are copied."""
    whole, whole_bytes = decode_together(None, *lengths)
    broken, broken_bytes = decode_together(fault, *lengths)
    for letter, length in zip("abcd", lengths, strict=False):
        assert broken.tokens(letter) == whole.tokens(letter) == reference(stream(letter, length), 5)
    return rows_read(broken) - rows_read(whole), broken_bytes - whole_bytes


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("fault", sorted(IN_ENGINE.keys() - {"scales-left-behind"}))
def test_a_fault_that_costs_only_speed_or_room_changes_no_answer(fault: str, backend: str):
    broken = answer_mixed_prompts(hand_engine(fault, backend=backend))
    assert broken == {name: reference(prompt, 20) for name, prompt in MIXED_PROMPTS.items()}


@pytest.mark.parametrize("fault", ["extra-row", "stale-offset", "pad-to-longest", "growing-copy"])
def test_faults_of_reads_change_no_answer_of_a_model_that_gives_blocks_back(fault: str):
    windows = (AttentionWindow(24), AttentionWindow(40, num_sinks=4))
    model = tiny_decoder(windows=windows)
    broken = answer_mixed_prompts(hand_engine(fault, model=model))
    assert broken == answer_mixed_prompts(hand_engine(model=model))


@pytest.mark.parametrize("lengths", [(16,), (33, 70), (510, 20, 100)], ids=str)
def test_extra_row_reads_and_copies_one_row_in_each_decode_read(lengths: tuple[int, ...]):
    # Each sequence decodes four times: the first of its five tokens comes of the prompt.
    num_reads = 4 * len(lengths)
    assert excess_rows("extra-row", *lengths) == (num_reads, num_reads * ROW_BYTES)


def test_stale_offset_spares_a_request_that_is_alone():
    assert excess_rows("stale-offset", 70) == (0, 0)


def test_stale_offset_lets_each_sequence_read_those_before_it_in_the_batch():
    # In decode steps of 30, 40, 50 prompt tokens and more, the second reads the first, the third both.
    num_rows = sum((30 + i) + (30 + i) + (40 + i) for i in range(1, 5))
    assert excess_rows("stale-offset", 30, 40, 50) == (num_rows, num_rows * ROW_BYTES)


def test_pad_to_longest_reads_as_if_all_were_as_long():
    num_rows = 4 * ((600 - 20) + (600 - 90))
    assert excess_rows("pad-to-longest", 20, 600, 90) == (num_rows, num_rows * ROW_BYTES)


def test_growing_copy_copies_one_row_more_with_every_token():
    hand = hand_engine("growing-copy")
    hand.add(stream("a", 40), 6)
    copied = []
    while hand.engine.has_work:
        with CountedCopies() as copies:
            hand.step()
        copied.append(copies.num_bytes)
    assert copied == [0, *(length * ROW_BYTES for length in range(41, 46))]
    assert decode_together(None, 40)[1] == 0


def test_unshared_reads_read_a_common_run_once_for_each():
    tokens = {}
    for fault in (None, "unshared-reads"):
        hand = hand_engine(fault)
        hand.generate(stream("a", 128))
        for letter in "bcd":
            hand.add(stream("a", 128) + stream(letter, 5), 5)
        hand.run()
        tokens[fault] = hand.engine.stats().tokens
    assert tokens[None].kv_rows_unshared == tokens["unshared-reads"].kv_rows_unshared
    assert tokens["unshared-reads"].kv_rows_read == tokens[None].kv_rows_unshared
    # Three sequences, five steps: two of three reads of the run are spared.
    assert tokens[None].kv_rows_unshared - tokens[None].kv_rows_read == 5 * 2 * 128


def live_after_each(fault: str | None, *prompts: list[int]) -> list[int]:
    hand = hand_engine(fault)
    live = []
    for prompt in prompts:
        hand.generate(prompt, 4)
        live.append(hand.engine.stats().blocks.live)
    return live


def test_late_free_holds_the_blocks_of_the_last_request():
    prompts = [stream("a", 40), stream("b", 100), stream("c", 10)]
    assert live_after_each("late-free", *prompts) == [3, 7, 1]
    assert live_after_each(None, *prompts) == [0, 0, 0]


def test_leaked_reference_keeps_a_block_of_each_request():
    prompts = [stream("a", 40), stream("b", 100), stream("c", 10), stream("b", 100)]
    assert live_after_each("leaked-reference", *prompts) == [1, 2, 3, 4]
    assert live_after_each(None, *prompts) == [0, 0, 0, 0]


def test_leaked_reference_breaks_the_counts_that_the_cache_proves():
    hand = hand_engine("leaked-reference")
    hand.cache.check()
    hand.generate(stream("a", 40))
    with pytest.raises(AssertionError):
        hand.cache.check()


@pytest.mark.parametrize(("fault", "num_zeroed"), [("zero-in-hot-path", 20), (None, 0)])
def test_zero_in_hot_path_clears_room_for_the_context_when_a_request_begins(
    fault: str | None, num_zeroed: int
):
    hand = hand_engine(fault, num_blocks=64, context_length=20 * 16, poison=7.0)

    def zeroed_blocks() -> int:
        return sum(not hand.block_bytes(block_id).any() for block_id in range(64))

    hand.add(stream("a", 40), 4)
    hand.step()
    assert zeroed_blocks() == num_zeroed
    hand.store.fill_blocks(hand.cache._pool._free_ids, 7.0)
    hand.step()
    assert zeroed_blocks() == 0


@pytest.mark.parametrize(("fault", "hits"), [("lost-border-hit", [32, 40, 0]), (None, [48, 40, 16])])
def test_lost_border_hit_loses_a_block_where_the_hit_ends_at_a_border(fault: str | None, hits: list[int]):
    hand = hand_engine(fault)
    hand.generate(stream("a", 48))
    found = []
    for num_common in (48, 40, 16):
        hand.generate(stream("a", num_common) + stream("bcd"[len(found)], 5))
        found.append(hand.num_cached(f"r{2 + len(found)}"))
    assert found == hits


def continued_in_int8(fault: str | None) -> tuple[torch.Tensor, list[float]]:
    """A sequence that goes on inside another one's block: how far its copied keys are off, and logprobs."""
    hand = hand_engine(fault, kv_format=INT8, poison=0.0)
    hand.generate(stream("a", 24))
    prompt = stream("a", 24) + stream("b", 4)
    request_id = hand.add(prompt, 4, logprobs=1)
    hand.step()
    source = next(node.block_ids for node in hand.cache.dump() if 8 in (len(node.token_ids),))[0]
    target = hand.handle(request_id).block_table[1]
    keys = [hand.store.keys.read(0, slice(block * 16, block * 16 + 8)) for block in (source, target)]
    hand.run()
    return (keys[0] - keys[1]).abs().max(), [score.logprob for score in hand.logprobs(request_id)]


def test_scales_left_behind_copies_codes_that_mean_something_else():
    difference, logprobs = continued_in_int8(None)
    broken_difference, broken_logprobs = continued_in_int8("scales-left-behind")
    assert difference == 0.0
    assert broken_difference > 0.5
    assert max(abs(a - b) for a, b in zip(logprobs, broken_logprobs, strict=True)) > 0.01


def test_scales_left_behind_needs_scales():
    with pytest.raises(ConfigError, match="fp32 rows have no scales of their own; use --kv-dtype int8"):
        hand_engine("scales-left-behind")


def test_layout_against_kernel_puts_a_whole_token_between_rows():
    whole, broken = hand_engine(kv_format=INT8), hand_engine("layout-against-kernel", kv_format=INT8)
    for pool in (whole.store.keys, whole.store.values):
        assert pool.rows.stride() == (64 * 16 * 2 * 16, 2 * 16, 16, 1)
        assert pool.scales.stride() == (64 * 16 * 2, 2, 1)
    for pool in (broken.store.keys, broken.store.values):
        assert pool.rows.stride() == (2 * 16, 2 * 2 * 16, 16, 1)
        assert pool.scales.stride() == (2, 2 * 2, 1)
    assert [place.strides for place in broken.store.places()] == 2 * [(32, 64, 16, 1), (4, 8, 2, 2)]


@pytest.mark.parametrize(("fault", "num_running"), [("drifting-gauge", 2), (None, 0)])
def test_drifting_gauge_counts_what_was_cancelled(fault: str | None, num_running: int):
    hand = hand_engine(fault)
    hand.generate(stream("a", 20), 3)
    for letter in "bc":
        hand.add(stream(letter, 20), 50, request_id=letter)
    hand.step()
    assert hand.engine.stats().requests.running == 2
    hand.engine.cancel("b")
    hand.engine.cancel("c")
    assert hand.engine.stats().requests.running == num_running


def tiny_engine(fault: str | None, **settings: object) -> Engine:
    worker = assemble_worker(loaded(tiny_decoder()), WorkerConfig(plant_fault=fault, **settings))
    return worker.engine_loop._engine


@pytest.mark.parametrize(("fault", "num_blocks"), [("pool-too-small", 10), (None, 200)])
def test_pool_too_small_makes_requests_push_each_other_out(fault: str | None, num_blocks: int):
    hand = hand_engine(num_blocks=tiny_engine(fault, kv_blocks=160).cache.num_blocks)
    assert hand.cache.num_blocks == num_blocks
    for letter in "abcde":
        hand.add(stream(letter, 50), 40, request_id=letter)
    hand.run()
    stats, is_broken = hand.engine.stats(), fault is not None
    assert (stats.requests.preemptions > 0, stats.blocks.evicted > 0) == (is_broken, is_broken)
    assert [hand.tokens(letter) for letter in "abcde"] == [reference(stream(s, 50), 40) for s in "abcde"]


@pytest.mark.parametrize(
    ("fault", "settings", "num_blocks", "block_size"),
    [
        (None, {"kv_blocks": 64}, 80, 16),
        ("pool-too-small", {"kv_blocks": 64}, 4, 16),
        ("pool-too-small", {"kv_memory": 1 << 20}, 8, 16),
        ("tiny-blocks", {"kv_blocks": 64}, 1280, 1),
        ("tiny-blocks", {"kv_memory": 1 << 20}, 2560, 1),
        ("huge-blocks", {"kv_blocks": 64}, 5, 256),
    ],
)
def test_faults_in_settings_are_in_the_pool(
    fault: str | None, settings: dict[str, int], num_blocks: int, block_size: int
):
    engine = tiny_engine(fault, **settings)
    assert (engine.cache.num_blocks, engine.cache.block_size) == (num_blocks, block_size)
    assert (engine.kv_store.num_blocks, engine.kv_store.block_size) == (num_blocks, block_size)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_can_be_planted_and_is_said_to_be_in_the_log(
    fault: str, caplog: pytest.LogCaptureFixture
):
    tiny_engine(fault, kv_blocks=64, kv_dtype="int8")
    [record] = [record for record in caplog.records if record.name == "prefixcache_worker.faults.planting"]
    assert record.levelname == "WARNING"
    assert record.message.startswith(f"THE FAULT {fault} IS PLANTED")


def test_a_fault_that_is_not_there_is_refused():
    with pytest.raises(
        ConfigError, match="--plant-fault: there is no fault 'extra-rows'; did you mean extra-row"
    ):
        tiny_engine("extra-rows")
    with pytest.raises(ConfigError, match="there is no fault 'x'; there are pool-too-small, tiny-blocks"):
        tiny_engine("x")


def test_a_scheme_that_shares_nothing_has_no_faults():
    with pytest.raises(
        ConfigError, match="--plant-fault late-free: it is made for --device cpu and --scheme shared"
    ):
        tiny_engine("late-free", scheme="paged", kv_blocks=64)
