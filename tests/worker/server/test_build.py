"""From settings to a worker: pool, context, and what cannot be built."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from support.tiny_checkpoint import save_tiny_checkpoint, tiny_transformers_model
from support.tiny_loaded_model import loaded
from support.tiny_model import tiny_decoder

from prefixcache import Namespace
from prefixcache_worker.attention import native
from prefixcache_worker.attention.calibration import CALIBRATION_TEXT, calibrate
from prefixcache_worker.attention.layout import KvLayout, LayoutOrder
from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.engine.request import Completion, Request, SamplingParams, StopConditions
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model import linear, native_linear, native_operators
from prefixcache_worker.model.loader import load_model
from prefixcache_worker.model.model import AttentionWindow
from prefixcache_worker.server import build, host_memory
from prefixcache_worker.server.build import assemble_worker, build_worker


def test_a_worker_with_too_little_memory_is_not_built():
    with pytest.raises(ConfigError, match=r"^--kv-memory: 8KiB gives 1 blocks of 8KiB, too few"):
        assemble_worker(loaded(tiny_decoder()), WorkerConfig(kv_memory=8 << 10))


def test_a_pool_larger_than_the_machine_is_refused():
    with pytest.raises(ConfigError, match=r"^--kv-blocks: a pool of .* does not fit the .* of memory"):
        assemble_worker(loaded(tiny_decoder()), WorkerConfig(kv_blocks=10**12))


@pytest.mark.parametrize(
    ("limit", "fits"),
    [("163840\n", True), ("131072\n", False), ("max\n", True), ("9223372036854771712\n", True), (None, True)],
)
def test_a_pool_larger_than_the_container_is_refused(
    limit: str | None, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """20 blocks of 8 KiB; the kernel ends a container that touches more than its limit."""
    limit_file = tmp_path / "memory.max"
    if limit is not None:
        limit_file.write_text(limit)
    monkeypatch.setattr(host_memory, "CONTAINER_LIMITS", (limit_file,))
    config = WorkerConfig(kv_memory=16 * 8192)
    if fits:
        assert assemble_worker(loaded(tiny_decoder()), config).pool_size.pool_bytes == 163840
    else:
        with pytest.raises(ConfigError, match=r"^--kv-memory: .* 160KiB in all does not fit the 128KiB of"):
            assemble_worker(loaded(tiny_decoder()), config)


def test_the_worker_describes_the_model_it_serves():
    model = tiny_decoder(context_length=200)
    worker = assemble_worker(loaded(model), WorkerConfig(kv_blocks=16, context_length=150))
    served = worker.model
    assert (served.name, served.build, served.architecture) == ("tiny", "tiny-build", "llama")
    assert (served.context_length, served.vocabulary_size) == (150, 1000)
    assert (served.block_size, served.num_blocks, served.kv_dtype) == (16, 20, "fp32")
    assert served.block_bytes == 2 * 2 * 16 * 2 * 16 * 4  # keys and values, layers, slots, heads, dim, bytes


def test_the_pool_has_the_format_and_layout_of_the_settings():
    """1 KiB of codes each for keys and values, and 128 bytes of scales for the values alone."""
    model = tiny_decoder()
    config = WorkerConfig(kv_memory=1 << 20, kv_dtype="int8", kv_scales="channel", kv_layout="head-first")
    worker = assemble_worker(loaded(model), config)
    store = worker.engine_loop._engine.kv_store
    assert (worker.model.kv_dtype, worker.model.block_bytes) == ("int8/channel", 2 * 1024 + 128)
    assert worker.pool_size.num_requested_blocks == (1 << 20) // (2 * 1024 + 128)
    assert store.block_bytes == worker.model.block_bytes
    text_ids = loaded(model).tokenizer.encode(CALIBRATION_TEXT, add_special=True)
    assert torch.equal(store.keys.fixed_scale, calibrate(model, store.format, text_ids=text_ids).keys)
    assert store.layout.order is LayoutOrder.HEAD_FIRST


@pytest.mark.parametrize(
    ("settings", "head_dim", "sentence"),
    [
        ({"kv_dtype": "fp16", "kv_scales": "tensor"}, 16, r"^--kv-scales tensor: .* not --kv-dtype fp16"),
        ({"kv_dtype": "int4"}, 15, r"^--kv-dtype int4: .* heads have 15"),
    ],
)
def test_formats_that_do_not_go_together_are_refused(settings, head_dim, sentence):
    with pytest.raises(ConfigError, match=sentence):
        assemble_worker(loaded(tiny_decoder(head_dim=head_dim)), WorkerConfig(**settings))


def test_a_pool_smaller_than_the_context_limits_it_and_says_so(caplog: pytest.LogCaptureFixture):
    model = tiny_decoder(context_length=512)
    with caplog.at_level(logging.WARNING):
        worker = assemble_worker(loaded(model), WorkerConfig(kv_blocks=8, kv_headroom=0.0))
    assert worker.model.context_length == 128
    assert "the KV pool of 128 tokens limits the context of 512" in caplog.text


def test_a_context_beyond_the_models_is_refused():
    with pytest.raises(ConfigError, match=r"^--context-length: 513 is more than the 512 tokens"):
        assemble_worker(loaded(tiny_decoder(context_length=512)), WorkerConfig(context_length=513))


def test_the_model_is_loaded_in_the_format_of_the_settings(tmp_path: Path):
    folder = str(save_tiny_checkpoint(tmp_path, tiny_transformers_model()))
    worker = build_worker(WorkerConfig(model=folder, weights="int8", kv_blocks=4))
    assert worker.model.build == load_model(folder, weight_format="int8").build


def test_num_threads_is_what_torch_uses():
    before = torch.get_num_threads()
    try:
        with pytest.raises(ConfigError):
            build_worker(WorkerConfig(num_threads=before + 1, model="/no/such/model.gguf"))
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_s22_nothing_is_left_for_the_first_request_to_make(monkeypatch: pytest.MonkeyPatch):
    """In a process that has loaded no kernel: they are there, and so is the pool, before the worker is."""
    kernels = (native, native_linear, native_operators)
    prepared = (linear.products_are_batch_invariant, native_operators.prepare_native_operators)
    for function in (*(module._library for module in kernels), *prepared):
        function.cache_clear()
    worker = assemble_worker(loaded(tiny_decoder()), WorkerConfig(kv_blocks=4))

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("made while a request waits")

    for module in kernels:
        monkeypatch.setattr(module, "load_library", refuse)
    monkeypatch.setattr(KvLayout, "allocate", refuse)
    engine = worker.engine_loop._engine
    request = Request(
        request_id="first",
        namespace=Namespace(model="tiny", tenant="t"),
        prompt_token_ids=(7, 8, 9),
        sampling=SamplingParams(temperature=0),
        stop_conditions=StopConditions(max_tokens=3, ignore_eos=True),
    )
    engine.add("first", request)
    events = [output.event for _ in range(3) for output in engine.step()]
    assert isinstance(events[-1], Completion)


@pytest.mark.parametrize("block_size", [8, 128])
def test_an_unusual_block_size_is_warned_of(block_size: int, caplog: pytest.LogCaptureFixture):
    config = WorkerConfig(block_size=block_size, model="/no/such/model.gguf")
    with caplog.at_level(logging.WARNING), pytest.raises(ConfigError, match=r"^/no/such/model\.gguf: "):
        build_worker(config)
    assert f"--block-size {block_size} is unusual" in caplog.text


@pytest.mark.parametrize(("scheme", "num_live"), [("contiguous", 10), ("paged", 1), ("shared", 1)])
def test_the_scheme_decides_what_a_request_reserves(scheme: str, num_live: int):
    """Of a context of 150 tokens, 10 blocks."""
    config = WorkerConfig(scheme=scheme, kv_blocks=32, context_length=150)
    cache = assemble_worker(loaded(tiny_decoder()), config).engine_loop._engine.cache
    cache.acquire([7], Namespace(model="tiny", tenant="t"))
    assert cache.stats().num_live == num_live


def test_sinks_without_a_window_are_refused():
    with pytest.raises(ConfigError, match="--window-sinks: 3 rows before a window that is not there"):
        assemble_worker(loaded(tiny_decoder()), WorkerConfig(window_sinks=3))


def test_a_window_reaches_the_shape():
    worker = assemble_worker(loaded(tiny_decoder()), WorkerConfig(kv_blocks=4, window=64))
    assert worker.model.attention_shape.reach == AttentionWindow(64, 4)


def test_summaries_for_sparse_reads_count_as_part_of_the_block():
    plain = assemble_worker(loaded(tiny_decoder()), WorkerConfig(kv_blocks=4))
    worker = assemble_worker(loaded(tiny_decoder()), WorkerConfig(kv_blocks=4, top_k_blocks=8))
    shape = worker.model.attention_shape
    summaries = 2 * 4 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    assert worker.pool_size.block_bytes == plain.pool_size.block_bytes + summaries


@pytest.mark.parametrize(
    ("windows", "window", "words"),
    [
        ((), 64, "--top-k-blocks 8 and --window 64: within a window everything is read"),
        (
            (AttentionWindow(32),) * 2,
            None,
            "--top-k-blocks 8: all layers .* have windows of up to 32",
        ),
    ],
)
def test_sparse_reads_where_there_is_nothing_to_choose_from_are_refused(windows, window, words):
    config = WorkerConfig(kv_blocks=4, window=window, top_k_blocks=8)
    with pytest.raises(ConfigError, match=words):
        assemble_worker(loaded(tiny_decoder(windows=windows)), config)


def test_rounded_weights_without_the_kernel_are_warned_of(monkeypatch, caplog):
    monkeypatch.setattr(build, "products_are_batch_invariant", lambda: False)
    monkeypatch.setattr(build, "load_model", lambda *args, **kwargs: loaded(tiny_decoder()))
    build_worker(WorkerConfig(kv_blocks=4, weights="int8"))
    assert "--weights int8: without the compiled kernel" in caplog.text
    caplog.clear()
    build_worker(WorkerConfig(kv_blocks=4))
    assert "compiled kernel" not in caplog.text
