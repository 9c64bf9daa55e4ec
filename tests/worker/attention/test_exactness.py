"""With the compiled kernel a token's output is the same bit for bit, however its step was put together."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kv_formats import FORMATS, fixed_scales_of

from prefixcache_worker.attention.cpu import CpuAttention
from prefixcache_worker.attention.kv_format import FP32
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.layout import LayoutOrder
from prefixcache_worker.attention.native import NativeAttention, prepare_native_attention
from prefixcache_worker.attention.plan import SequenceSpan
from prefixcache_worker.attention.planner import plan_attention
from prefixcache_worker.model.model import AttentionShape, AttentionWindow
from prefixcache_worker.native_library import NativeLibraryError

try:
    prepare_native_attention()
except NativeLibraryError:  # plain torch answers then, which promises the same numbers but not the same bits
    ATTENTION, TOLERANCE = CpuAttention, 2e-5
else:
    ATTENTION, TOLERANCE = NativeAttention, 0.0


class Text(NamedTuple):
    """One sequence's rows, position by position."""

    query: torch.Tensor  # [length, num_query_heads, head_dim]
    key: torch.Tensor  # [length, num_kv_heads, head_dim]
    value: torch.Tensor  # [length, num_kv_heads, head_dim]


class Setting(NamedTuple):
    shape: AttentionShape
    block_size: int = 16
    window: AttentionWindow | None = None
    kv_format: object = FP32


def make_texts(shape, lengths, num_shared, seed=0):
    """Texts that begin with the same rows."""
    generator = torch.Generator().manual_seed(seed)

    def rows(length, num_heads):
        return torch.randn(length, num_heads, shape.head_dim, generator=generator)

    def text(length):
        return Text(
            rows(length, shape.num_query_heads), *(rows(length, shape.num_kv_heads) for _ in range(2))
        )

    begin = text(num_shared)
    return [Text(*map(torch.cat, zip(begin, text(length - num_shared), strict=True))) for length in lengths]


def last_outputs(
    texts,
    num_tokens,
    setting,
    *,
    num_shared=0,
    share=True,
    shuffle=False,
    order=LayoutOrder.LAYER_FIRST,
    poison=torch.nan,
):
    """The outputs of each text's last tokens, from one step in which text i computes its last num_tokens[i].

    The first `num_shared` rows of all texts lie in the same blocks. With `shuffle` the blocks lie anywhere
    and the sequences come in another order.
    """
    shape, size = setting.shape, setting.block_size
    lengths = [len(text.key) for text in texts]
    num_blocks = -(-num_shared // size) + sum(-(-length // size) for length in lengths)
    generator = torch.Generator().manual_seed(1)
    ids = iter(torch.randperm(num_blocks, generator=generator).tolist() if shuffle else range(num_blocks))
    shared = [next(ids) for _ in range(num_shared // size)]
    tables = [[*shared, *(next(ids) for _ in range(-(-length // size) - len(shared)))] for length in lengths]
    store = KvStore(
        shape,
        num_blocks=num_blocks,
        block_size=size,
        order=order,
        kv_format=setting.kv_format,
        fixed_scales=fixed_scales_of(setting.kv_format, shape),
    )
    store.fill_blocks(range(num_blocks), poison)
    numbers = list(range(len(texts)))
    if shuffle:
        numbers.reverse()
    spans = [SequenceSpan(tables[i], lengths[i] - num_tokens[i], num_tokens[i]) for i in numbers]
    for i, span in zip(numbers, spans, strict=True):
        if span.start > 0:
            position = torch.arange(span.start)
            slots = torch.tensor(span.block_table)[position // size] * size + position % size
            store.write(0, slots, texts[i].key[: span.start], texts[i].value[: span.start])
    plan = plan_attention(spans, size, window=setting.window, share=share)
    plan.check()
    assert any(item.num_sequences > 1 for item in plan.items) == (share and num_shared > 0)
    batch = [numbers[i] for i in plan.order]
    columns = (
        torch.cat([column[-num_tokens[i] :] for i, column in zip(batch, columns, strict=True)])
        for columns in zip(*(texts[i] for i in batch), strict=True)
    )
    outputs = ATTENTION(plan, store).attend(0, *columns).split([num_tokens[i] for i in batch])
    return dict(zip(batch, outputs, strict=True))


def each_alone(texts, num_tokens, setting):
    """Tokens decoded one at a time, each sequence on its own."""
    return {
        i: torch.cat(
            [
                last_outputs([Text(*(column[:length] for column in text))], [1], setting)[0]
                for length in range(len(text.key) - count + 1, len(text.key) + 1)
            ]
        )
        for i, (text, count) in enumerate(zip(texts, num_tokens, strict=True))
    }


def assert_same_bits(outputs, expected):
    assert outputs.keys() == expected.keys()
    for i, output in outputs.items():
        torch.testing.assert_close(output, expected[i], atol=TOLERANCE, rtol=0, msg=f"text {i}")


SHAPE = AttentionShape(num_layers=1, num_query_heads=6, num_kv_heads=2, head_dim=16)
WINDOWS = [None, AttentionWindow(40), AttentionWindow(200, 4), AttentionWindow(33, 70)]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("kv_format", FORMATS, ids=lambda kv_format: kv_format.name)
def test_batch_sharing_place_and_prefill_change_no_bit(kv_format, window):
    """B115. Shared runs here end in the middle of a segment, and the sequences end anywhere."""
    setting = Setting(SHAPE, window=window, kv_format=kv_format)
    num_shared = 192 if window is None or window.size > 100 else 0
    texts, one = make_texts(SHAPE, [193, 250, 256, 577, 641], num_shared), [1] * 5
    expected = each_alone(texts, one, setting)
    assert_same_bits(last_outputs(texts, one, setting), expected)
    assert_same_bits(last_outputs(texts, one, setting, shuffle=True, poison=torch.inf), expected)
    assert_same_bits(last_outputs(texts, one, setting, order=LayoutOrder.HEAD_FIRST), expected)
    assert_same_bits(last_outputs(texts, one, setting, num_shared=num_shared), expected)
    assert_same_bits(last_outputs(texts, one, setting, num_shared=num_shared, share=False), expected)
    prefills = last_outputs(texts, [1, 40, 1, 7, 130], setting, num_shared=num_shared, shuffle=True)
    assert_same_bits({i: output[-1:] for i, output in prefills.items()}, expected)
    first = {i: output[:1] for i, output in prefills.items()}
    texts = [
        Text(*(column[: len(column) - n] for column in text))
        for text, n in zip(texts, (0, 39, 0, 6, 129), strict=True)
    ]
    assert_same_bits(first, each_alone(texts, one, setting))


@pytest.mark.parametrize("head_dim", [5, 64, 80, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 5, 8])
def test_every_tile_of_queries_gives_the_same_bits(head_dim, group):
    """From one query to more than fill a task, by either way to run one."""
    shape = AttentionShape(num_layers=1, num_query_heads=group, num_kv_heads=1, head_dim=head_dim)
    setting = Setting(shape)
    texts = make_texts(shape, [150 + i for i in range(20)], 128)
    expected = last_outputs(texts, [1] * 20, setting, share=False)
    for count in (1, 2, 3, 4, 5, 8, 11, 16, 20):
        outputs = last_outputs(texts[:count], [1] * count, setting, num_shared=128 if count > 1 else 0)
        assert_same_bits(outputs, {i: expected[i] for i in range(count)})


@settings(deadline=None, max_examples=40)
@given(
    st.integers(128, 640),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 80)), min_size=2, max_size=4),
    st.sampled_from([1, 16, 128]),
    st.sampled_from([None, AttentionWindow(260), AttentionWindow(200, 4), AttentionWindow(33, 70)]),
    st.sampled_from(FORMATS),
    st.booleans(),
)
def test_any_step_gives_the_bits_of_decoding_alone(
    num_shared, private, block_size, window, kv_format, shuffle
):
    """Behind a run of shared blocks each text has cached rows of its own, and then the tokens of the step.

    All windows see enough of the run, through their sinks or their ends, that it is read once for all.
    """
    num_shared = -(-num_shared // block_size) * block_size
    setting = Setting(SHAPE, block_size, window, kv_format)
    num_tokens = [count for _, count in private]
    texts = make_texts(SHAPE, [num_shared + sum(counts) for counts in private], num_shared)
    one_by_one = each_alone(texts, [min(count, 2) for count in num_tokens], setting)
    for share in (True, False):
        together = last_outputs(
            texts, num_tokens, setting, num_shared=num_shared, share=share, shuffle=shuffle
        )
        assert_same_bits({i: output[-2:] for i, output in together.items()}, one_by_one)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_the_number_of_threads_changes_no_bit(num_threads):
    setting, count = Setting(SHAPE), torch.get_num_threads()
    texts = make_texts(SHAPE, [600, 650], 512)
    expected = each_alone(texts, [1, 1], setting)
    try:
        torch.set_num_threads(num_threads)
        assert_same_bits(last_outputs(texts, [1, 1], setting, num_shared=512), expected)
    finally:
        torch.set_num_threads(count)
