"""What a GPU leaves for the KV pool, told by a memory that only counts."""

import pytest
import torch
from support.tiny_model import tiny_decoder

from prefixcache_worker.attention.plan import SEGMENT_ROWS
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.server.gpu_memory import SPARE_SHARE, partial_bytes, pool_bytes_left


class CountedMemory:
    """So many bytes in all, of which weights and others have taken some; a step takes what it is told to."""

    def __init__(self, total: int, weights: int, step: int, *, others: int = 0) -> None:
        self.total_bytes = total
        self.free_bytes = total - weights - others
        self._step = step
        self.num_runs = 0

    def peak_bytes(self, run) -> int:
        run()
        self.num_runs += 1
        return self._step


def left(memory: CountedMemory, **limits: int) -> int:
    usual = {"max_batch_tokens": 32, "max_running": 4, "context_length": 1000}
    return pool_bytes_left(tiny_decoder(), memory, device="cpu", **(usual | limits))


def test_the_pool_gets_what_weights_and_the_largest_step_leave():
    memory = CountedMemory(total=100_000_000, weights=20_000_000, step=3_000_000)
    attention = 36 * 2 * 6 * 18 * 4  # tokens, segments of 1,000 rows, heads, elements and two sums, float32
    assert partial_bytes(tiny_decoder().attention_shape, 36, 1000) == attention
    assert left(memory) == 100_000_000 - 20_000_000 - 3_000_000 - attention - int(SPARE_SHARE * 100_000_000)
    assert memory.num_runs == 1


def test_b81_what_others_have_of_the_gpu_is_not_counted_on(monkeypatch):
    monkeypatch.setattr("prefixcache_worker.server.gpu_memory.SPARE_SHARE", 0.1)
    memory = CountedMemory(24 * 10**9, 8 * 10**9, 10**9, others=6 * 10**9)
    attention = partial_bytes(tiny_decoder().attention_shape, 36, 1000)
    assert (left(memory) + attention) // 2_000_000 == 3300


def test_the_largest_step_is_really_run(monkeypatch):
    model, steps = tiny_decoder(), []
    forward = model.forward
    monkeypatch.setattr(
        model, "forward", lambda batch, attention: steps.append(batch) or forward(batch, attention)
    )
    memory = CountedMemory(total=1 << 30, weights=0, step=0)
    for context_length, num_tokens in ((1000, 32), (20, 20)):
        pool_bytes_left(
            model,
            memory,
            device="cpu",
            max_batch_tokens=32,
            max_running=4,
            context_length=context_length,
        )
        assert len(steps[-1].token_ids) == num_tokens
        assert torch.equal(steps[-1].positions, torch.arange(num_tokens))
        assert torch.equal(steps[-1].logit_rows, torch.arange(num_tokens))  # a prompt may be scored


def test_longer_contexts_leave_less():
    lengths = (SEGMENT_ROWS, SEGMENT_ROWS + 1, 100_000)
    pools = [left(CountedMemory(1 << 30, 0, 0), context_length=length) for length in lengths]
    assert pools == sorted(pools, reverse=True)
    assert len(set(pools)) == 3


def test_too_small_a_gpu_is_told_by_all_numbers():
    memory = CountedMemory(total=64 << 20, weights=60 << 20, step=2 << 20)
    with pytest.raises(
        ConfigError, match=r"^--device cpu: of 64MiB the weights leave 4MiB, .* 2\.03\d?MiB; lower"
    ):
        left(memory)
