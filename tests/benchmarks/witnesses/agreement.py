"""Our figures beside those of another load generator."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from report import Row

TOLERANCE = 0.05
Figures = Mapping[str, float]


def bench(*arguments: str, folder: Path) -> Figures:
    """The figures of `prefixcache bench`, by the names that `agreement_rows` compares."""
    path = folder / "ours.json"
    program = [sys.executable, "-m", "prefixcache_client.command_line.main"]
    subprocess.run(
        [*program, "bench", *arguments, "--json", str(path), "--force"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    summary = json.loads(path.read_text(encoding="utf-8"))["summary"]
    latencies, throughput = summary["latencies"], summary["throughput"]
    return {
        "requests": summary["num_answered"],
        "requests/s": throughput["requests_per_second"],
        "output tokens/s": throughput["output_tokens_per_second"],
        "prompt tokens": summary["tokens"]["prompt"],
        "first token, mean s": latencies["first_token"]["mean"],
        "first token, p90 s": latencies["first_token"]["p90"],
        "time per token, mean s": latencies["per_token"]["mean"],
        "end to end, mean s": latencies["total"]["mean"],
        "end to end, p90 s": latencies["total"]["p90"],
        "cached share": summary["tokens"]["cached_share"],
    }


def agreement_rows(rounds: Sequence[tuple[Figures, Figures]], *, witness: str) -> list[Row]:
    """For each figure that both have: ours over theirs, the median of the rounds."""
    rows = []
    for name in rounds[0][1]:
        ratios = sorted(ours[name] / theirs[name] for ours, theirs in rounds)
        ratio = statistics.median(ratios)
        ours, theirs = (
            statistics.median(figures[name] for figures in side) for side in zip(*rounds, strict=True)
        )
        has_bar = "p90" not in name  # of so few requests it varies by more from run to run
        rows.append(
            Row(
                name=name,
                value=ratio,
                unit="x",
                spread=f"{ratios[0]:.3f} to {ratios[-1]:.3f}",
                bar=f"within {TOLERANCE:.0%}" if has_bar else None,
                holds=abs(ratio - 1) <= TOLERANCE if has_bar else None,
                note=f"ours {_shown(ours)}, {witness} {_shown(theirs)}",
            )
        )
    return rows


def _shown(value: float) -> str:
    """Four digits, and whole numbers in full."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
