"""The Triton kernels on a real GPU: what no interpreter shows. Run with `pytest tests/gpu`."""

from itertools import pairwise

import pytest
import torch
from support.attention_steps import (
    BF16,
    FP16,
    FP32,
    make_store,
    name_of,
    outputs_by_token,
    run_both,
    shape_of,
    tolerance,
)
from support.hand_engine import HandEngine, reference, stream
from support.kv_formats import FORMATS
from support.tiny_model import tiny_decoder
from support.triton_twins import copy_blocks_twin

from prefixcache import BlockCopy
from prefixcache_worker.attention.backend import choose_backend
from prefixcache_worker.attention.kv_format import KvDtype, KvFormat, KvScales
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.layout import LayoutOrder
from prefixcache_worker.attention.plan import SequenceSpan
from prefixcache_worker.attention.planner import plan_attention
from prefixcache_worker.attention.triton.backend import TritonAttention
from prefixcache_worker.attention.triton.decode_graph import GraphedModel, GraphLimits
from prefixcache_worker.attention.triton.tile import choose_tile
from prefixcache_worker.attention.triton.warm_up import warm_up
from prefixcache_worker.model.model import AttentionWindow

CUDA = torch.device("cuda")
INT8, INT4 = (KvFormat(dtype, KvScales.TOKEN_HEAD) for dtype in (KvDtype.INT8, KvDtype.INT4))


def gpu_tolerance(kv_format):
    """Codes are multiplied in bfloat16 here, which the interpreter cannot."""
    return tolerance(kv_format if kv_format.dtype.max_code is None else BF16)


def two_levels(num_tokens):
    """Two groups of three on one base, blocks in no order; what nobody sees is NaN."""
    torch.manual_seed(1)
    ids = torch.randperm(200).tolist()
    base, middles, tails = ids[:36], (ids[36:50], ids[50:64]), ids[64:]
    return [
        SequenceSpan([*base, *middles[i % 2], *tails[8 * i : 8 * i + 8]], 50 * 16 + 7 * i, num_tokens)
        for i in range(6)
    ]


@pytest.mark.parametrize("kv_format", FORMATS, ids=name_of)
@pytest.mark.parametrize("num_tokens", [1, 21])
@pytest.mark.parametrize(
    ("head_dim", "group_size"), [(16, 2), (64, 1), (64, 3), (80, 7), (96, 5), (128, 4), (128, 8), (256, 3)]
)
def test_steps_equal_the_reference(head_dim, group_size, num_tokens, kv_format):
    for share in (True, False):
        for window in (None, AttentionWindow(300, 4)):
            ours, expected = run_both(
                TritonAttention,
                two_levels(num_tokens),
                16,
                shape_of(2, group_size, head_dim),
                share=share,
                window=window,
                kv_format=kv_format,
                device="cuda",
            )
            torch.testing.assert_close(ours, expected, **gpu_tolerance(kv_format))


@pytest.mark.parametrize("query_dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kv_format", [FP16, BF16, INT8, INT4], ids=name_of)
def test_half_precision_queries(kv_format, query_dtype):
    ours, expected = run_both(
        TritonAttention,
        two_levels(5),
        16,
        shape_of(2, 4, 128),
        kv_format=kv_format,
        query_dtype=query_dtype,
        device="cuda",
    )
    allowed = max((gpu_tolerance(kv_format), tolerance(kv_format, query_dtype)), key=lambda t: t["atol"])
    torch.testing.assert_close(ours, expected, **allowed)


@pytest.mark.parametrize("block_size", [1, 8, 32, 64])
@pytest.mark.parametrize("order", LayoutOrder)
def test_b34_lengths_around_a_block_border(order, block_size):
    ids = iter(range(1000))
    lengths = {1, block_size - 1, block_size, block_size + 1, 2 * block_size, 5 * block_size - 1} - {0}
    spans = [
        SequenceSpan([next(ids) for _ in range(-(-length // block_size))], length - 1, 1)
        for length in sorted(lengths)
    ]
    ours, expected = run_both(
        TritonAttention, spans, block_size, shape_of(2, 3, 64), order=order, device="cuda"
    )
    torch.testing.assert_close(ours, expected, **tolerance(FP32))


@pytest.mark.parametrize("kv_format", [FP32, FP16, BF16, INT8, INT4], ids=name_of)
@pytest.mark.parametrize("window", [None, AttentionWindow(90, 4)])
def test_who_shares_and_where_blocks_lie_changes_no_bit(kv_format, window):
    """Shared or not, alone or together, in any order, over any block ids, in one tile."""
    torch.manual_seed(0)

    def outputs(block_ids, sequences, *, share):
        return outputs_by_token(
            block_ids, sequences, share=share, kv_format=kv_format, window=window, device="cuda"
        )

    expected = outputs(range(50), [0, 1, 2], share=True)
    for block_ids in (range(50), torch.randperm(50)):
        for sequences in ([0, 1, 2], [2, 0, 1], [1]):
            for share in (True, False):
                found = outputs(block_ids, sequences, share=share)
                assert torch.equal(found[sequences], expected[sequences]), (sequences, share)


@pytest.mark.parametrize("kv_format", [FP32, BF16, INT8], ids=name_of)
def test_a_prefill_has_the_bits_of_its_tokens_decoded_one_by_one(kv_format):
    shape = shape_of(1, 4, 128)
    tile = choose_tile(64, shape.head_dim, kv_format.dtype.storage)
    store = make_store(shape, 8, 16, kv_format, device="cuda")
    rows = torch.randn(100, 6, 128, generator=torch.Generator().manual_seed(0)).to(CUDA)
    query, key, value = rows.split((4, 1, 1), dim=1)
    outputs = []
    for cuts in ([0, 100], [0, 37, 64, *range(65, 101)]):
        parts = []
        for begin, end in pairwise(cuts):
            plan = plan_attention([SequenceSpan([7, 2, 6, 1, 0, 3, 4], begin, end - begin)], 16)
            attention = TritonAttention(plan, store, tile=tile)
            parts.append(attention.attend(0, query[begin:end], key[begin:end], value[begin:end]))
        outputs.append(torch.cat(parts))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("kv_format", FORMATS, ids=name_of)
@pytest.mark.parametrize("order", LayoutOrder)
def test_block_copies_and_writes_equal_torch(kv_format, order):
    shape = shape_of(3, 2, 80, num_layers=3)
    ours, twin = (make_store(shape, 8, 16, kv_format, order=order, device="cuda") for _ in range(2))
    for layer in range(3):
        rows = torch.randn(2, 8 * 16, 3, 80, device=CUDA)
        for store in (ours, twin):
            store.write(layer, torch.arange(8 * 16, device=CUDA), *rows)
    copies = [BlockCopy(0, 5, 3), BlockCopy(2, 1, 16), BlockCopy(0, 4, 1)]
    ours.copy_blocks(copies)
    copy_blocks_twin([*twin.keys.tensors(), *twin.values.tensors()], copies, 16)
    plan = plan_attention([SequenceSpan([7, 3], 10, 9)], 16)
    query, key, value = torch.randn(9, 12, 80, device=CUDA).split((6, 3, 3), dim=1)
    TritonAttention(plan, ours).attend(1, query, key, value)
    twin.write(1, torch.tensor(plan.slot_mapping(), device=CUDA), key, value)
    for a, b in ((ours.keys, twin.keys), (ours.values, twin.values)):
        for stored, expected in zip(a.tensors(), b.tensors(), strict=True):
            assert torch.equal(stored, expected)


def test_offsets_pass_32_bits_in_a_real_pool():
    """The last block of a pool of 2.2e9 elements."""
    shape = shape_of(8, 4, 128, num_layers=1)
    num_blocks = 2_200_000_000 // (16 * 8 * 128)
    store = KvStore(shape, num_blocks=num_blocks, block_size=16, kv_format=BF16, device="cuda")
    plan = plan_attention([SequenceSpan([num_blocks - 1], 0, 16)], 16)
    rows = torch.randn(16, 48, 128, device=CUDA).bfloat16()
    query, key, value = rows.split((32, 8, 8), dim=1)
    TritonAttention(plan, store).attend(0, query, key, value)
    assert torch.equal(store.keys.rows[0, -16:], key)
    assert not store.keys.rows[0, :-16].any()


def test_the_engine_answers_as_on_the_cpu():
    """Prefill in chunks, a shared prefix, copy-on-write, decode: the same greedy tokens."""
    store = KvStore(shape_of(), num_blocks=2, block_size=16, device="cuda")
    assert choose_backend("auto", store) is TritonAttention
    engine = HandEngine(
        model=tiny_decoder(device="cuda"), backend="triton", device="cuda", max_batch_tokens=64
    )
    answer_as_on_the_cpu(engine)


def test_recorded_steps_answer_as_on_the_cpu_and_are_recorded_once(monkeypatch):
    """The same, replayed; other lengths and other sharing need no other recording."""
    engine = HandEngine(
        model=tiny_decoder(device="cuda"), backend="triton", device="cuda", max_batch_tokens=64
    )
    graphed = GraphedModel(engine.model, engine.store, GraphLimits(max_running=4, context_length=512))
    warm_up(graphed, engine.store, TritonAttention, max_batch_tokens=64, max_running=4)
    engine.engine._model = graphed
    monkeypatch.setattr(torch.cuda, "CUDAGraph", None)  # whoever records again, fails
    answer_as_on_the_cpu(engine)


def answer_as_on_the_cpu(engine: HandEngine) -> None:
    prompts = [stream("a", 150), stream("a", 150), stream("a", 130) + stream("b", 9)]
    expected = [reference(prompt, 12) for prompt in prompts]
    assert [engine.generate(prompt, 12) for prompt in prompts] == expected
    together = [engine.add(prompt, 12) for prompt in prompts]
    engine.run()
    assert [engine.tokens(request_id) for request_id in together] == expected
    assert engine.num_cached(together[0]) == 149
