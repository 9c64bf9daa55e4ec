"""This project beside vLLM on the same rounds, in turn, in one run.

Usage: peers.py --vllm "PYTHON peer_vllm.py MODEL_DIR" [--bench-dir DIR] [--rounds 5] [--json FILE]

Runs `side_by_side.py` of the bench folder, which starts both peers and prints the median of each and the
ratio pair by pair; see that folder's README for how to set vLLM up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from report import Row, print_rows

HERE = Path(__file__).parent
ROUNDS = {"prefix=1024,requests=16": 1.0, "prefix=4096,requests=32": 1.5}
"""Shape of a round -> how many times vLLM's output rate is asked for."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", required=True, help="the command that starts vLLM as a peer")
    parser.add_argument("--bench-dir", type=Path, default=HERE.parents[1] / "../shared/bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    ours = f"{sys.executable} {HERE / 'peer_prefixcache.py'} --bench-dir {args.bench_dir}"
    with tempfile.NamedTemporaryFile("r", suffix=".json") as report:
        command = [sys.executable, str(args.bench_dir / "side_by_side.py"), "--json", report.name]
        command += [f"--rounds={args.rounds}", *(f"--round={shape}" for shape in ROUNDS)]
        subprocess.run([*command, f"ours={ours}", f"vllm={args.vllm}"], check=True, stdout=sys.stderr)
        results = json.load(report)
    rows = []
    for (shape, bar), result in zip(ROUNDS.items(), results, strict=True):
        ours_rate, vllm = result["ours"]["output_tokens_per_s"], result["vllm"]
        ratio, (low, high) = vllm["ours_over_this"], vllm["ratio_min_max"]
        rows.append(
            Row(
                name=f"output tokens/s over vLLM's, {shape}",
                value=ratio,
                unit="ratio",
                spread=f"{low} to {high}",
                bar=f">= {bar:g}",
                holds=ratio >= bar,
                note=f"{ours_rate} against {vllm['output_tokens_per_s']} tokens/s, medians of {args.rounds}",
            )
        )
    print_rows(rows, args.json)


if __name__ == "__main__":
    main()
