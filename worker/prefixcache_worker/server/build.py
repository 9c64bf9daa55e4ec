"""From settings to an engine that is ready to start."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from prefixcache import PrefixCache
from prefixcache_worker.attention.approximation import Approximation
from prefixcache_worker.attention.backend import AttentionBackend, choose_backend
from prefixcache_worker.attention.block_summaries import BlockSummaries
from prefixcache_worker.attention.calibration import CALIBRATION_TEXT, calibrate
from prefixcache_worker.attention.cpu import CpuAttention
from prefixcache_worker.attention.kv_format import KvFormat, choose_format
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.layout import LayoutOrder
from prefixcache_worker.attention.sparse import SparseReads
from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.constraint.compiler import ConstraintCompiler
from prefixcache_worker.diagnosis.diagnosis import Diagnosis
from prefixcache_worker.engine.cache_scheme import make_cache
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.engine.engine_config import EngineConfig
from prefixcache_worker.engine.engine_loop import EngineLoop
from prefixcache_worker.engine.event_feed import EventFeed, new_event_log
from prefixcache_worker.engine.request_stream import ReaderLimits
from prefixcache_worker.engine.tier_mover import TierMover
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.memory_size import format_memory
from prefixcache_worker.model.linear import products_are_batch_invariant
from prefixcache_worker.model.loader import LoadedModel, load_model
from prefixcache_worker.model.model import AttentionShape, AttentionWindow, Model
from prefixcache_worker.server.host_memory import host_memory_bytes
from prefixcache_worker.server.metrics.page import Metrics
from prefixcache_worker.server.metrics.request_times import RequestTimes
from prefixcache_worker.server.metrics.tenant_totals import TenantTotals
from prefixcache_worker.server.pool_size import PoolSize, plan_pool, usual_pool_bytes
from prefixcache_worker.server.served_model import ServedModel
from prefixcache_worker.server.tiers import build_tiers
from prefixcache_worker.server.validation.prefixes import PrefixTtl
from prefixcache_worker.snapshots.cache_snapshots import CacheSnapshots
from prefixcache_worker.snapshots.snapshot_folder import SnapshotFolder
from prefixcache_worker.snapshots.snapshot_keeper import SnapshotKeeper

if TYPE_CHECKING:
    from prefixcache_worker.server.tracing.otlp import OtlpTraces

USUAL_SINKS = 4
"""As many as Xiao et al. 2023 found to be enough."""
USUAL_KV_DTYPES = {"cpu": "fp32", "cuda": "bf16"}
USUAL_BLOCK_SIZES = range(16, 65)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Everything a server needs."""

    engine_loop: EngineLoop
    model: ServedModel
    times: RequestTimes
    """The engine's observer."""
    metrics: Metrics
    pool_size: PoolSize
    snapshots: SnapshotKeeper | None
    """None where nothing is saved."""
    event_feed: EventFeed | None
    """None where nothing is shared."""
    prefix_ttl: PrefixTtl
    traces: OtlpTraces | None
    """None where none are made."""
    diagnosis: Diagnosis


def build_worker(config: WorkerConfig) -> Worker:
    """Load the model, allocate the pool and join the engine's parts. Starts nothing.

    Raises ConfigError, naming the setting or the file. Sets the process's number of torch threads.
    """
    if config.block_size not in USUAL_BLOCK_SIZES:
        logger.warning(
            "--block-size %d is unusual: small blocks cost bookkeeping, large ones more copying",
            config.block_size,
        )
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    if config.device == "cpu" and config.weights != "fp32" and not products_are_batch_invariant():
        logger.warning(
            "--weights %s: without the compiled kernel the rounded weights are kept in float32, which saves "
            "neither memory nor time; install a C++ compiler, or use --weights fp32",
            config.weights,
        )
    logger.info("loading %s", config.model or "the built-in model")
    loaded = load_model(config.model, device=config.device, weight_format=config.weights)
    worker = assemble_worker(loaded, config)
    model = worker.model
    logger.info(
        "%s (%s, build %s) on %s, context of %d tokens",
        model.name,
        model.architecture,
        model.build,
        model.device,
        model.context_length,
    )
    return worker


def assemble_worker(loaded: LoadedModel, config: WorkerConfig) -> Worker:
    """The same with a model that is loaded already. Raises ConfigError."""
    if config.plant_fault is not None:
        return _assemble_broken(loaded, config, config.plant_fault)
    model = loaded.model
    context_length = _context_length(config, model.context_length)
    approximation = _approximation(config, model.attention_shape)
    shape = approximation.shape(model.attention_shape)
    kv_format = choose_format(config.kv_dtype or USUAL_KV_DTYPES[config.device], config.kv_scales, shape)
    block_bytes = kv_format.block_bytes(shape, config.block_size)
    if approximation.sparse_reads is not None:
        block_bytes += BlockSummaries.block_bytes(shape)
    pool_size = plan_pool(config, block_bytes, usual_bytes=usual_pool_bytes(model, config, context_length))
    kv_store = _allocate_pool(loaded, shape, config, kv_format, pool_size)
    attention = choose_backend(config.attention, kv_store)
    model = _made_ready(model, kv_store, attention, config, context_length)
    event_log = new_event_log(pool_size.num_blocks)
    memory_bytes = host_memory_bytes() - (pool_size.pool_bytes if config.device == "cpu" else 0)
    tiers = build_tiers(config, model, kv_store, attention, memory_bytes=memory_bytes)
    cache = make_cache(
        config.scheme,
        num_blocks=pool_size.num_blocks,
        block_size=config.block_size,
        max_total_tokens=context_length,
        max_pinned_share=config.max_pinned_share,
        events=event_log,
        tiers=tiers.sizes,
        num_worth_restoring=tiers.rule or len,
    )
    times = RequestTimes(TenantTotals(config.metrics_tenants))
    engine = Engine(
        model=model,
        cache=cache,
        kv_store=kv_store,
        token_bytes=loaded.tokenizer.token_bytes,
        eos_token_ids=loaded.config.eos_token_ids,
        config=EngineConfig(
            max_batch_tokens=config.max_batch_tokens,
            max_running=config.max_running,
            max_overtakes=config.max_overtakes,
            context_length=context_length,
            approximation=approximation,
        ),
        attention=attention,
        tier_mover=TierMover(cache, kv_store, tiers.stores) if isinstance(cache, PrefixCache) else None,
        observer=times,
    )
    if engine.max_total_tokens < context_length:
        logger.warning(
            "the KV pool of %d tokens limits the context of %d; give more --kv-memory to use all of it",
            engine.max_total_tokens,
            context_length,
        )
    served = ServedModel(
        name=config.model_name or loaded.config.name,
        build=loaded.build,
        architecture=loaded.config.architecture,
        attention_shape=shape,
        vocabulary_size=model.vocabulary_size,
        context_length=engine.max_total_tokens,
        eos_token_ids=loaded.config.eos_token_ids,
        tokenizer=loaded.tokenizer,
        chat_template=loaded.chat_template,
        constraints=ConstraintCompiler(
            loaded.tokenizer,
            vocabulary_size=model.vocabulary_size,
            eos_token_ids=loaded.config.eos_token_ids,
        ),
        device=config.device,
        block_size=config.block_size,
        num_blocks=pool_size.num_blocks,
        block_bytes=pool_size.block_bytes,
        kv_dtype=kv_store.format.name,
    )
    engine_loop = EngineLoop(
        engine,
        max_live_requests=config.max_running + config.max_waiting,
        max_waiting_tokens=config.max_waiting_tokens or math.inf,
        reader_limits=ReaderLimits(
            max_unread_tokens=config.max_unread_tokens, stall_seconds=config.stall_seconds
        ),
    )
    keeper = None
    if config.snapshot is not None:
        keeper = SnapshotKeeper(
            _restored(engine, served, attention, config.snapshot),
            engine_loop,
            interval_seconds=config.snapshot_seconds,
            stop_seconds=config.snapshot_stop_seconds,
        )
    event_feed = None
    if isinstance(engine.cache, PrefixCache):
        event_feed = EventFeed(engine_loop, engine.cache, event_log)
    return Worker(
        engine_loop=engine_loop,
        model=served,
        times=times,
        metrics=Metrics(
            times=times,
            engine_loop=engine_loop,
            model=served,
            has_vllm_aliases=config.metrics_aliases == "vllm",
            has_tenants=config.metrics_tenants > 0,
        ),
        pool_size=pool_size,
        event_feed=event_feed,
        snapshots=keeper,
        prefix_ttl=_prefix_ttl(config),
        traces=_traces(config, served),
        diagnosis=Diagnosis(engine_loop, config, kv_store, attention, loaded.model),
    )


def _traces(config: WorkerConfig, served: ServedModel) -> OtlpTraces | None:
    if config.otlp_endpoint is None:
        return None
    # Only here: who wants no traces need not have the packages.
    try:
        from prefixcache_worker.server.tracing.otlp import OtlpTraces
    except ImportError as error:
        raise ConfigError(
            f"--otlp-endpoint: needs a package that is not installed ({error.name}); install "
            "prefixcache[otel]"
        ) from error
    return OtlpTraces(config.otlp_endpoint, model=served.name)


def _assemble_broken(loaded: LoadedModel, config: WorkerConfig, fault: str) -> Worker:
    try:
        # Only here: what is built for installation comes without them.
        from prefixcache_worker.faults.planting import break_settings, plant
    except ModuleNotFoundError as error:
        raise ConfigError(
            "--plant-fault: this build has no faults to plant; drop it, or run from a checkout of the source"
        ) from error
    worker = assemble_worker(loaded, break_settings(fault, config))
    plant(fault, worker, config)
    return worker


def _restored(
    engine: Engine, served: ServedModel, attention: AttentionBackend, folder: str
) -> CacheSnapshots:
    """The engine's snapshots, with the cache filled from the last one if there is one that fits."""
    if not engine.cache.shares_prefixes:
        raise ConfigError("--snapshot: this --scheme keeps nothing that could be saved; drop one of the two")
    rows_of = f"{served.build} on {served.device} by {attention.__qualname__}, {engine.config.approximation}"
    snapshots = CacheSnapshots(engine, SnapshotFolder(folder), model_build=served.build, rows_of=rows_of)
    snapshots.restore_at_start()
    return snapshots


def _made_ready(
    model: Model, kv_store: KvStore, attention: AttentionBackend, config: WorkerConfig, context_length: int
) -> Model:
    """Where the Triton kernels run, the model with its decode steps recorded; elsewhere the model itself."""
    if attention is CpuAttention or kv_store.device.type != "cuda":
        return model
    # Only here: a machine without a GPU need not have triton.
    from prefixcache_worker.attention.triton.decode_graph import GraphedModel, GraphLimits
    from prefixcache_worker.attention.triton.warm_up import warm_up

    graphed = GraphedModel(
        model, kv_store, GraphLimits(max_running=config.max_running, context_length=context_length)
    )
    warm_up(
        graphed,
        kv_store,
        attention,
        max_batch_tokens=config.max_batch_tokens,
        max_running=config.max_running,
    )
    return graphed


def _prefix_ttl(config: WorkerConfig) -> PrefixTtl:
    usual, most = (seconds or math.inf for seconds in (config.prefix_ttl, config.max_prefix_ttl))
    if usual > most:
        raise ConfigError(
            f"--prefix-ttl: {config.prefix_ttl:g} is more than --max-prefix-ttl, which is {most:g}; "
            "give less, or raise that"
        )
    return PrefixTtl(usual_seconds=usual, max_seconds=most)


def _context_length(config: WorkerConfig, model_context_length: int) -> int:
    if config.context_length is None:
        return model_context_length
    if config.context_length > model_context_length:
        raise ConfigError(
            f"--context-length: {config.context_length} is more than the {model_context_length} tokens "
            "the model knows"
        )
    return config.context_length


def _approximation(config: WorkerConfig, shape: AttentionShape) -> Approximation:
    if config.top_k_blocks is not None and config.window is not None:
        raise ConfigError(
            f"--top-k-blocks {config.top_k_blocks} and --window {config.window}: within a window "
            "everything is read, so there are no blocks to choose from; drop one"
        )
    if config.top_k_blocks is not None and shape.reach is not None:
        raise ConfigError(
            f"--top-k-blocks {config.top_k_blocks}: all layers of the model have windows of up to "
            f"{shape.reach.size} tokens, so there are no blocks to choose from; drop it"
        )
    if config.window is None and config.window_sinks is not None:
        raise ConfigError(
            f"--window-sinks: {config.window_sinks} rows before a window that is not there; give --window too"
        )
    num_sinks = USUAL_SINKS if config.window_sinks is None else config.window_sinks
    return Approximation(
        window=None if config.window is None else AttentionWindow(config.window, num_sinks),
        sparse_reads=None if config.top_k_blocks is None else SparseReads(config.top_k_blocks),
    )


def _allocate_pool(
    loaded: LoadedModel,
    shape: AttentionShape,
    config: WorkerConfig,
    kv_format: KvFormat,
    pool_size: PoolSize,
) -> KvStore:
    flag = "--kv-memory" if config.kv_blocks is None else "--kv-blocks"
    does_not_fit = f"{flag}: a pool of {pool_size} does not fit"
    if config.device == "cpu" and pool_size.pool_bytes > (num_bytes := host_memory_bytes()):
        # The kernel would promise it, and kill us when the pages are touched.
        raise ConfigError(
            f"{does_not_fit} the {format_memory(num_bytes)} of memory that there are; ask for less"
        )
    text_ids = loaded.tokenizer.encode(CALIBRATION_TEXT, add_special=True)
    fixed_scales = calibrate(loaded.model, kv_format, text_ids=text_ids, device=config.device)
    try:
        return KvStore(
            shape,
            num_blocks=pool_size.num_blocks,
            block_size=config.block_size,
            kv_format=kv_format,
            fixed_scales=fixed_scales,
            device=config.device,
            order=LayoutOrder(config.kv_layout),
            with_summaries=config.top_k_blocks is not None,
        )
    except RuntimeError as error:  # what torch raises when an allocation fails
        raise ConfigError(f"{does_not_fit} the memory of {config.device}; ask for less") from error
