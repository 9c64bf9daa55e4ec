"""Decode and prefill in every format, shared and unshared, against float64; torch's own error beside."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from report import Row

from gpu_sections.cases import BLOCK_SIZE, FORMATS, Case, Scope
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import AttentionPlan, SequenceSpan
from prefixcache_worker.attention.planner import plan_attention
from prefixcache_worker.attention.reference import ReferenceAttention
from prefixcache_worker.attention.triton.backend import TritonAttention
from prefixcache_worker.model.model import AttentionWindow

TOLERANCES = {"fp32": (2e-5, 1e-5), "fp16": (1e-3, 1e-3)}
"""Absolute and relative; of all other formats, which multiply in bfloat16, the next."""
BF16_TOLERANCE = (1.5e-2, 1e-2)
GROUP_SIZES = {16: 2, 64: 3, 80: 7, 96: 1, 128: 4}
NUM_SEQUENCES = 6


def correctness(scope: Scope) -> Iterator[Row]:
    """Every format, head size, and kind of step."""
    for kv in scope.choose(("fp16", "int4"), FORMATS, FORMATS):
        for head_dim in scope.choose((16,), (64, 128), (64, 80, 96, 128)):
            for num_tokens in scope.choose((3,), (1, 19), (1, 19)):
                case = Case(
                    0,
                    NUM_SEQUENCES,
                    head_dim,
                    GROUP_SIZES[head_dim],
                    num_kv_heads=scope.choose(1, 2, 2),
                    kv=kv,
                )
                for window in (None, AttentionWindow(100, 4)):
                    try:
                        yield from check_case(case, num_tokens, window, scope)
                    except Exception:
                        print(f"FAILED {case}, {num_tokens} tokens, {window}", file=sys.stderr)
                        traceback.print_exc()


def check_case(case: Case, num_tokens: int, window: AttentionWindow | None, scope: Scope) -> Iterator[Row]:
    """Six sequences on two levels of scattered blocks; what nobody wrote is NaN."""
    torch.manual_seed(0)
    num_base, num_middle = scope.choose((4, 2), (36, 14), (36, 14))
    ids = torch.randperm(num_base + 2 * num_middle + 8 * NUM_SEQUENCES).tolist()
    base, middles = ids[:num_base], (ids[num_base : num_base + num_middle], ids[num_base + num_middle :])
    tails = ids[num_base + 2 * num_middle :]
    spans = [
        SequenceSpan(
            [*base, *middles[i % 2][:num_middle], *tails[i * 8 : i * 8 + 8]],
            (num_base + num_middle) * BLOCK_SIZE + 7 * i,
            num_tokens,
        )
        for i in range(NUM_SEQUENCES)
    ]
    store = KvStore(
        case.shape,
        num_blocks=len(ids),
        block_size=BLOCK_SIZE,
        kv_format=FORMATS[case.kv],
        device=scope.device,
    )
    store.fill_blocks(range(len(ids)), torch.nan)
    for span in spans:
        slots = _slots(span, span.start)
        rows = torch.randn(2, len(slots), case.num_kv_heads, case.head_dim, device=scope.device)
        store.write(0, slots.to(scope.device), *rows)
    num_heads = case.num_query_heads + 2 * case.num_kv_heads
    heads = torch.randn(NUM_SEQUENCES * num_tokens, num_heads, case.head_dim, device=scope.device)
    query, key, value = heads.to(case.dtype).split(
        (case.num_query_heads, case.num_kv_heads, case.num_kv_heads), dim=1
    )
    atol, rtol = TOLERANCES.get(case.kv, BF16_TOLERANCE)
    for share in (True, False):
        plan = plan_attention(spans, BLOCK_SIZE, window=window, share=share)
        ours = TritonAttention(plan, store).attend(0, query, key, value).double()
        expected = ReferenceAttention(plan, store).attend(0, query.double(), key, value)
        error = (ours - expected).abs()
        yield Row(
            name=f"error, {case.kv}, D {case.head_dim}, group {case.group_size}, {num_tokens} tokens, "
            f"{'window' if window else 'all rows'}, {'shared' if share else 'unshared'}",
            value=error.max().item(),
            unit="at most",
            bar=f"{atol} + {rtol} |x|",
            holds=bool((error <= atol + rtol * expected.abs()).all()),  # False for NaN too
            note=f"torch SDPA {sdpa_error(plan, store, query, expected):.3g}",
        )


def _slots(span: SequenceSpan, end: int) -> torch.Tensor:
    rows = torch.arange(end)
    return torch.tensor(span.block_table)[rows // BLOCK_SIZE] * BLOCK_SIZE + rows % BLOCK_SIZE


def sdpa_error(plan: AttentionPlan, store: KvStore, query: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest error of torch's own attention in the queries' type, sequence by sequence."""
    worst, first, group = 0.0, 0, store.layout.shape.group_size
    for span in plan.spans:
        slots = _slots(span, span.length).to(query.device)
        k, v = (
            pool.read(0, slots).nan_to_num().to(query.dtype).transpose(0, 1)[None].repeat_interleave(group, 1)
            for pool in (store.keys, store.values)
        )
        positions = torch.arange(span.start, span.length, device=query.device)[:, None]
        rows = torch.arange(span.length, device=query.device)
        mask = rows <= positions
        if plan.window is not None:
            mask &= (rows > positions - plan.window.size) | (rows < plan.window.num_sinks)
        q = query[first : first + span.num_tokens].transpose(0, 1)[None]
        output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0].transpose(0, 1)
        worst = max(worst, (output.double() - expected[first : first + span.num_tokens]).abs().max().item())
        first += span.num_tokens
    return worst
