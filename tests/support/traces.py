"""Traces made up in memory."""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache import Namespace, pack_tokens
from prefixcache.replay import Trace, TraceRequest


def request(
    ids: Sequence[int],
    *,
    tenant: str = "acme",
    num_public_ids: int = 0,
    output_ids: Sequence[int] = (),
    arrival_seconds: float = 0.0,
) -> TraceRequest:
    return TraceRequest(
        arrival_seconds=arrival_seconds,
        namespace=Namespace("model", tenant, is_publisher=num_public_ids > 0),
        prompt_ids=pack_tokens(ids),
        num_public_ids=num_public_ids,
        output_ids=pack_tokens(output_ids),
        num_output_tokens=len(output_ids),
    )


def trace(*requests: TraceRequest, block_size: int = 16, has_tokens: bool = False) -> Trace:
    return Trace(
        name="made up",
        block_size=block_size,
        has_tokens=has_tokens,
        num_requests=len(requests),
        read=lambda: iter(requests),
    )
