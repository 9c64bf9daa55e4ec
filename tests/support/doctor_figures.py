"""Figures of a healthy worker for the doctor's checks; a test changes what it is about."""

from __future__ import annotations

from typing import Any

from prefixcache_client.answers import ModelInfo
from prefixcache_client.cache_answers import BlockStats, RequestStats, Stats, TokenStats
from prefixcache_client.diagnosis_answers import (
    PoolLayout,
    StepFault,
    StepFinding,
    StepProfile,
    StepRecord,
    TensorPlace,
)
from prefixcache_client.doctor.finding import Finding, Verdict

TOKEN_BYTES = 1024
BLOCK_SIZE = 16


def accused(findings: list[Finding]) -> dict[str, str | None]:
    """The pitfall by the check's name, of findings that accuse."""
    return {
        finding.name: finding.pitfall
        for finding in findings
        if finding.verdict in (Verdict.WARNING, Verdict.FAULT)
    }


def step(*findings: StepFinding, **fields: Any) -> StepRecord:
    """A decode step of two sequences of 100 and 40 rows."""
    values: dict[str, Any] = {
        "number": 1,
        "num_sequences": 2,
        "num_tokens": 2,
        "num_prompt_tokens": 0,
        "rows_needed": 140,
        "rows_read": 140,
        "rows_unshared": 140,
        "longest": 100,
        "num_block_copies": 0,
        "seconds": 0.01,
        "plan_seconds": 0.0001,
        "model_seconds": 0.009,
        "live_blocks": 10,
        "findings": findings,
        "num_lost": 0,
    }
    return StepRecord(**values | fields)


def broken(fault: StepFault, *, expected: int = 40, found: int = 41) -> StepFinding:
    """A rule that a step breaks."""
    sentence = f"there should be {expected} and there are {found}"
    return StepFinding(fault=fault, request_id="r", expected=expected, found=found, sentence=sentence)


def profile(**fields: Any) -> StepProfile:
    """20 decode steps of one sequence in 0.2 s."""
    values: dict[str, Any] = {
        "num_steps": 20,
        "num_tokens": 20,
        "seconds": 0.2,
        "num_copies": 100,
        "copied_bytes": 20 * 300,
        "filled_bytes": 0,
        "attention_seconds": 0.05,
        "product_seconds": 0.1,
        "copy_seconds": 0.01,
        "kv_bytes": 20 * 100 * TOKEN_BYTES,
        "weight_bytes": 20 * 10**6,
        "operations": (),
    }
    return StepProfile(**values | fields)


def layout(order: str = "layer-first", strides: tuple[int, ...] = (1024, 64, 32, 4)) -> PoolLayout:
    """Keys of 2 layers, 16 slots, 2 heads and 8 floats; the strides are those of `layer-first`."""
    keys = TensorPlace(
        name="keys", dtype="float32", size=(2, 16, 2, 8), strides=strides, address=4096, element_bytes=4
    )
    return PoolLayout(order=order, tensors=(keys,), attention="native", token_bytes=256)


def model_info(**fields: Any) -> ModelInfo:
    """A pool of 1,280 blocks of 16 KiB."""
    values: dict[str, Any] = {
        "name": "model",
        "build": "b",
        "architecture": "llama",
        "num_layers": 2,
        "num_query_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 8,
        "vocabulary_size": 300,
        "context_length": 256,
        "block_size": BLOCK_SIZE,
        "num_blocks": 1280,
        "block_bytes": 16 * TOKEN_BYTES,
        "device": "cpu",
        "kv_dtype": "fp32",
        "eos_token_ids": (),
        "has_chat_template": False,
    }
    return ModelInfo(**values | fields)


def stats(
    *,
    blocks: dict[str, int] | None = None,
    tokens: dict[str, int] | None = None,
    requests: dict[str, int] | None = None,
) -> Stats:
    """An idle worker with 1,280 blocks that has held 100 at its peak."""
    usual_blocks = {
        "total": 1280,
        "free": 1280,
        "peak_live": 100,
        "peak_live_unshared": 100,
        "block_bytes": 16 * TOKEN_BYTES,
        "block_size": BLOCK_SIZE,
    }
    return Stats(
        blocks=BlockStats(**_zeros(BlockStats) | usual_blocks | (blocks or {})),
        tokens=TokenStats(**_zeros(TokenStats) | (tokens or {})),
        requests=RequestStats(**_zeros(RequestStats) | (requests or {})),
        tiers=(),
        latencies=(),
        evictions=(),
    )


def _zeros(cls: Any) -> dict[str, int]:
    return dict.fromkeys(cls.__dataclass_fields__, 0)
