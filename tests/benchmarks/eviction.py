"""What the eviction policies hit on recorded traces: longest-prefix hits as a share of all prompt blocks.

Mooncake's hour of conversations at four sizes, with every policy and the clairvoyant cache; then sessions
of agents, all together, in slices and one by one, where the default is only compared with lru.

Usage: eviction.py [--data-dir ../shared/data] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from report import Row, print_rows

from prefixcache import POLICIES, Namespace, pack_tokens
from prefixcache.replay import OPTIMUM, Comparison, ReplayRow, Trace, TraceRequest, read_trace

DATA_DIR = Path(__file__).resolve().parents[2].parent / "shared" / "data"
DEFAULT = "auto"

MOONCAKE_LRU = {1_000: 0.045, 3_000: 0.065, 10_000: 0.212, 30_000: 0.326}
"""Hit ratio of lru by size, as others have measured it too."""
MOONCAKE_LEAST_OVER_LRU = {1_000: 1.5, 3_000: 1.7, 10_000: 0.97, 30_000: 0.97}
LEAST_OVER_LRU = 0.97
"""What the default must keep of lru's hits on any other traffic."""


class Ratio(NamedTuple):
    """The default's hits over those of lru."""

    value: float
    where: str


class AgentData(NamedTuple):
    """Sessions that can be replayed together or apart."""

    name: str
    block_size: int
    has_tokens: bool
    sessions: list[list[TraceRequest]]
    capacities: Sequence[int]
    session_capacities: Sequence[int]

    def trace(self, name: str, sessions: Iterable[list[TraceRequest]]) -> Trace:
        """Some of the sessions, merged by time."""
        requests = sorted(
            (request for session in sessions for request in session),
            key=lambda request: request.arrival_seconds,
        )
        return Trace(
            name=name,
            block_size=self.block_size,
            has_tokens=self.has_tokens,
            num_requests=len(requests),
            read=lambda: iter(requests),
        )


def coding_sessions(folder: Path) -> AgentData:
    """Coding sessions in blocks of 64 tokens, which share nothing with each other."""
    return AgentData(
        name="coding sessions",
        block_size=64,
        has_tokens=False,
        sessions=[
            [
                replace(request, namespace=replace(request.namespace, salt=path.stem))
                for request in read_trace(path)
            ]
            for path in sorted(folder.glob("*.json"))
        ],
        capacities=(3_000, 10_000, 20_000, 40_000),
        session_capacities=(500, 2_000, 6_000),
    )


def text_sessions(name: str, folder: Path, capacities: Sequence[int]) -> AgentData:
    """Sessions whose text is known; a character counts as a token."""
    namespace = Namespace("model", "agent")
    sessions = []
    for path in sorted(folder.glob("*.jsonl")):
        turns = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        sessions.append(
            [
                TraceRequest(
                    arrival_seconds=turn["timestamp"] / 1e6,
                    namespace=namespace,
                    prompt_ids=pack_tokens([ord(character) for character in turn["input"]]),
                )
                for turn in turns
            ]
        )
    return AgentData(
        name=name,
        block_size=16,
        has_tokens=True,
        sessions=sessions,
        capacities=capacities,
        session_capacities=capacities,
    )


def rows_by_policy_and_size(
    trace: Trace, capacities: Sequence[int], policies: Sequence[str], *, with_optimum: bool = False
) -> dict[tuple[str, int], ReplayRow]:
    comparison = Comparison(trace, policies=policies, capacities=capacities, with_optimum=with_optimum)
    for request in trace:
        comparison.replay(request)
    return {(row.policy, row.num_blocks): row for row in comparison.rows() if row.tenant is None}


def mooncake_rows(trace: Trace) -> Iterator[Row]:
    """Every policy and the optimum, and what must hold for lru and the default."""
    replayed = rows_by_policy_and_size(trace, list(MOONCAKE_LRU), POLICIES, with_optimum=True)
    for num_blocks, expected in MOONCAKE_LRU.items():
        for policy in (*POLICIES, OPTIMUM):
            row = replayed[policy, num_blocks]
            is_lru = policy == "lru"
            yield Row(
                name=f"conversations, {num_blocks:,} blocks, {policy}",
                value=row.hit_ratio,
                unit="hit ratio",
                bar=f"{expected:g} +- 0.005" if is_lru else None,
                holds=abs(row.hit_ratio - expected) <= 0.005 if is_lru else None,
                note="" if policy == OPTIMUM else f"{row.share_of_optimum:.2f} of the optimum",
            )
        ratio = replayed[DEFAULT, num_blocks].hit_ratio / replayed["lru", num_blocks].hit_ratio
        yield worst_ratio_row(
            f"conversations, {num_blocks:,} blocks, {DEFAULT} over lru",
            [Ratio(ratio, "")],
            MOONCAKE_LEAST_OVER_LRU[num_blocks],
        )


def agent_rows(data: AgentData) -> Iterator[Row]:
    """The default over lru: all sessions, thirds of them, halves of the time, and each by itself."""
    sessions = data.sessions
    whole = data.trace("all of them", sessions)
    requests = list(whole)
    halves = (requests[: len(requests) // 2], requests[len(requests) // 2 :])
    slices = {
        "all together": [whole],
        "thirds of the sessions": [
            data.trace(f"third {start + 1}", sessions[start::3]) for start in range(3)
        ],
        "halves in time": [data.trace(f"half {index}", [half]) for index, half in enumerate(halves, 1)],
    }
    for name, traces in slices.items():
        ratios = [ratio for trace in traces for ratio in ratios_over_lru(trace, data.capacities)]
        yield worst_ratio_row(f"{data.name}, {name}, {DEFAULT} over lru", ratios, LEAST_OVER_LRU)
    ratios = [
        ratio
        for index, session in enumerate(sessions, 1)
        for ratio in ratios_over_lru(data.trace(f"session {index}", [session]), data.session_capacities)
    ]
    yield worst_ratio_row(f"{data.name}, one by one, {DEFAULT} over lru", ratios, LEAST_OVER_LRU)


def ratios_over_lru(trace: Trace, capacities: Sequence[int]) -> list[Ratio]:
    """One for each size at which lru hits anything."""
    replayed = rows_by_policy_and_size(trace, capacities, (DEFAULT, "lru"))
    return [
        Ratio(
            replayed[DEFAULT, num_blocks].num_hit_ids / replayed["lru", num_blocks].num_hit_ids,
            f"least in {trace.name} at {num_blocks:,} blocks",
        )
        for num_blocks in capacities
        if replayed["lru", num_blocks].num_hit_ids
    ]


def worst_ratio_row(name: str, ratios: Sequence[Ratio], least: float) -> Row:
    worst, best = min(ratios), max(ratios)
    return Row(
        name=name,
        value=worst.value,
        unit="ratio",
        spread=f"{worst.value:.3f} to {best.value:.3f}" if len(ratios) > 1 else None,
        bar=f">= {least:g}",
        holds=worst.value >= least,
        note=worst.where,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, default=DATA_DIR)
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    args = parser.parse_args()
    if not args.data_dir.is_dir():
        parser.error(f"{args.data_dir} is no folder; name the one with the traces")
    agents = args.data_dir / "agent-sessions"
    rows = list(mooncake_rows(read_trace(args.data_dir / "mooncake-fast25" / "conversation_trace.jsonl")))
    for data in (
        coding_sessions(args.data_dir / "claude-code-kv"),
        text_sessions("software agents", agents / "miniswe", (10_000, 20_000, 30_000)),
        text_sessions("airline agents", agents / "taubench", (300, 600, 1_200)),
    ):
        rows += agent_rows(data)
    print_rows(rows, args.json)


if __name__ == "__main__":
    main()
