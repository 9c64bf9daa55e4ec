"""A memory plan as people read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prefixcache_worker.memory_size import format_memory
from prefixcache_worker.planning.kv_plan import POOL_PER_PEAK, SCHEMES
from prefixcache_worker.planning.memory_plan import MemoryPlan


def plan_text(plan: MemoryPlan) -> str:
    """Several paragraphs and two tables."""
    return "\n".join(
        [*_head(plan), "", *_schemes(plan), "", *_formats(plan), "", *_sharing(plan), *_proposal(plan)]
    )


def _head(plan: MemoryPlan) -> Iterator[str]:
    shape, kv, load = plan.model.shape, plan.plan, plan.load
    sizes = f"{shape.num_layers} layers, {shape.num_kv_heads} KV heads of {shape.head_dim}"
    yield sizes if plan.model.name == sizes else f"{plan.model.name}: {sizes}"
    longest_bytes = load.longest_tokens * kv.token_bytes
    yield (
        f"KV in {plan.kv_format.name}: {kv.token_bytes:,} bytes a token; {load.longest_tokens:,} tokens take "
        f"{format_memory(longest_bytes)}"
    )
    yield (
        f"Memory: {format_memory(plan.memory_bytes)}, weights {format_memory(plan.weight_bytes)}, "
        f"left for KV {format_memory(plan.kv_bytes)}"
    )


def _schemes(plan: MemoryPlan) -> Iterator[str]:
    kv = plan.plan
    rows = [
        ("scheme", "one request takes", "unused", "requests that fit", f"with {plan.headroom:.0%} headroom")
    ]
    rows += [
        (
            scheme,
            format_memory(kv.request_blocks(scheme) * kv.block_bytes),
            f"{kv.unused_share(scheme):.0%}",
            _count(kv.num_requests(scheme, plan.kv_bytes)),
            _count(kv.num_requests(scheme, plan.kv_bytes_before_headroom)),
        )
        for scheme in SCHEMES
    ]
    return _table(rows)


def _formats(plan: MemoryPlan) -> Iterator[str]:
    rows = [("KV format", "bytes a token", *(f"{scheme}: fit" for scheme in SCHEMES))]
    for name, kv in plan.plans().items():
        fit = (_count(kv.num_requests(scheme, plan.kv_bytes)) for scheme in SCHEMES)
        rows.append((name, f"{kv.token_bytes:,}", *fit))
    return _table(rows)


def _sharing(plan: MemoryPlan) -> Iterator[str]:
    if not plan.load.prefix_tokens:
        return
    kv, count = plan.plan, plan.num_planned_requests
    apart, together = (kv.blocks(scheme, count) * kv.block_bytes for scheme in ("paged", "shared"))
    yield (
        f"Sharing the first {plan.load.prefix_tokens:,} tokens among {count:,} requests: "
        f"{format_memory(together)} in place of {format_memory(apart)}, "
        f"{1 - together / apart:.0%} less"
    )


def _proposal(plan: MemoryPlan) -> Iterator[str]:
    kv = plan.plan
    pool = format_memory(plan.proposed_blocks * kv.block_bytes)
    yield (
        f"Ask for: --kv-blocks {plan.proposed_blocks} --kv-headroom {plan.headroom:g} "
        f"--block-size {plan.block_size} --kv-dtype {plan.kv_format.dtype.value}   ({pool} before headroom)"
    )
    if plan.fits:
        yield f"That is {POOL_PER_PEAK:g} times what {plan.num_planned_requests:,} requests at once hold."
    else:
        held = kv.blocks("shared", plan.num_planned_requests) * kv.block_bytes
        yield (
            f"That is all there is room for; {plan.num_planned_requests:,} requests at once hold "
            f"{format_memory(held)}, and {POOL_PER_PEAK:g} times that would be better."
        )
    if plan.block_size != plan.proposed_block_size:
        yield f"Requests of this length go well with --block-size {plan.proposed_block_size}."


def _count(num_requests: int | None) -> str:
    return "any" if num_requests is None else f"{num_requests:,}"


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True))]
        yield "  ".join(cells)
