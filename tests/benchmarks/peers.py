"""This project beside vLLM and llama.cpp on the same rounds, in turn, in one run.

Usage: peers.py [--vllm "PYTHON peer_vllm.py MODEL_DIR"] [--llamacpp "PYTHON peer_llamacpp.py GGUF"]
                [--bench-dir DIR] [--rounds 5] [--json FILE]

Runs `side_by_side.py` of the bench folder, which starts all peers; see that folder's README for how to set
them up. We run twice: as we are by default, in float32, and with the formats of `FAST`. vLLM runs in
float32, llama.cpp on the Q4_1 weights of the file, which it multiplies with 8-bit activations.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from report import Row, print_rows

HERE = Path(__file__).parent
FAST = "--weights int8 --kv-dtype bf16"


class Round(NamedTuple):
    """A shape of `side_by_side.py`, and how many times each peer's output rate `FAST` has to reach."""

    name: str
    shape: str
    bars: dict[str, float]


ROUNDS = (
    Round("4,096 shared x 32", "prefix=4096,requests=32", {"vllm": 3.0, "llamacpp": 3.0}),
    Round("1,024 shared x 16", "prefix=1024,requests=16", {"vllm": 2.5, "llamacpp": 2.0}),
    Round("256 unshared x 8", "prefix=256,requests=8,shared=0", {"vllm": 1.3}),
    Round("1,024 x 1", "prefix=1024,requests=1", {"vllm": 2.0, "llamacpp": 1.0}),
)


def compare(result: dict[str, Any], round_: Round, ours: str, peer: str) -> Row:
    """Our rate over a peer's, round by round."""
    rates = {name: result[name]["all"] for name in (ours, peer)}
    ratios = [a / b for a, b in zip(rates[ours], rates[peer], strict=True)]
    bar = round_.bars.get(peer) if FAST in ours else None
    medians = [result[name]["output_tokens_per_s"] for name in (ours, peer)]
    return Row(
        name=f"{round_.name}: {ours} over {peer}",
        value=statistics.median(ratios),
        unit="times the output tokens/s",
        spread=f"{min(ratios):.2f} to {max(ratios):.2f}",
        bar=None if bar is None else f">= {bar:g}",
        holds=None if bar is None else statistics.median(ratios) >= bar,
        note=f"{medians[0]} against {medians[1]} tokens/s, medians of {len(ratios)}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", help="the command that starts vLLM as a peer")
    parser.add_argument("--llamacpp", help="the command that starts llama.cpp as a peer")
    parser.add_argument("--bench-dir", type=Path, default=HERE.parents[1] / "../shared/bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    us = f"{sys.executable} {HERE / 'peer_prefixcache.py'} --bench-dir {args.bench_dir}"
    ours = {"ours in float32": us, f"ours {FAST}": f"{us} -- {FAST}"}
    peers = {name: command for name in ("vllm", "llamacpp") if (command := getattr(args, name))}
    if not peers:
        parser.error("there is nobody to compare with: give --vllm or --llamacpp, or both")
    with tempfile.NamedTemporaryFile("r", suffix=".json") as report:
        command = [sys.executable, str(args.bench_dir / "side_by_side.py"), "--json", report.name]
        command += [f"--rounds={args.rounds}", *(f"--round={round_.shape}" for round_ in ROUNDS)]
        command += [f"{name}={command}" for name, command in (ours | peers).items()]
        subprocess.run(command, check=True, stdout=sys.stderr)
        results = json.load(report)
    rows = [
        compare(result, round_, name, peer)
        for round_, result in zip(ROUNDS, results, strict=True)
        for name in ours
        for peer in peers
    ]
    print_rows(rows, args.json)


if __name__ == "__main__":
    main()
