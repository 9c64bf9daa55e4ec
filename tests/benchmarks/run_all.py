"""Run every benchmark and write docs/performance.md from what they print.

Usage: run_all.py [--only NAME ...] [--vllm "PYTHON PEER_VLLM_PY MODEL_DIR"]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "build" / "bench"
PAGE = HERE.parents[1] / "docs" / "performance.md"
TITLES = {
    "main_job": "The main job",
    "peers": "Beside vLLM on the same machine",
    "hit_equality": "A hit changes nothing",
    "model_equality": "The model is the model",
    "cache_ops": "Cache operations",
}


def describe_machine() -> str:
    """CPU, cores and versions, as far as the operating system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    simd = torch.backends.cpu.get_cpu_capability()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{os.cpu_count()} cores of {model} ({simd}), {versions}"


def table(rows: list[dict[str, object]]) -> str:
    """One Markdown table of benchmark rows."""
    lines = ["| what | measured | spread | bar | holds | note |", "|---|---|---|---|---|---|"]
    for row in rows:
        value = row["value"]
        shown = f"{value:.3g}" if isinstance(value, float) else str(value)
        holds = {True: "yes", False: "**no**", None: ""}[row["holds"]]
        cells = [row["name"], f"{shown} {row['unit']}", row["spread"], row["bar"], holds, row["note"]]
        lines.append("| " + " | ".join("" if cell is None else str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def render() -> None:
    """Write the page from the newest results of each benchmark."""
    parts = ["# Measured\n", "Made by `make bench`; nothing on this page is typed by hand.\n"]
    for name, title in TITLES.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            result = json.loads(path.read_text())
            parts.append(f"## {title}\n\n`{result['command']}`, {result['date']}, {result['machine']}\n")
            parts.append(table(result["rows"]) + "\n")
    PAGE.write_text("\n".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=TITLES, default=list(TITLES))
    parser.add_argument(
        "--vllm", help="the command that starts vLLM as a peer; without it peers.py is left out"
    )
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in args.only:
        if name == "peers" and args.vllm is None:
            print("peers: left out, --vllm is not given")
            continue
        extra = ["--vllm", args.vllm] if name == "peers" else []
        raw = RESULTS / f"{name}.rows.json"
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, HERE / f"{name}.py", "--json", raw, *extra]).returncode != 0:
            failed.append(name)
            continue
        result = {
            "command": f"tests/benchmarks/{name}.py",
            "date": datetime.date.today().isoformat(),
            "machine": describe_machine(),
            "rows": json.loads(raw.read_text()),
        }
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1))
    render()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
