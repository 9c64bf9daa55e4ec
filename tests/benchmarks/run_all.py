"""Run every benchmark and write docs/performance.md, and the table of the README, from what they print.

The page shows the newest rows of each, also those that miss their bar; the exit status is 1 when one did.

Usage: run_all.py [--only NAME ...] [--vllm "PYTHON peer_vllm.py MODEL_DIR"]
                  [--llamacpp "PYTHON peer_llamacpp.py GGUF"]
                  [--sglang PYTHON] [--vllm-python PYTHON]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import torch

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "build" / "bench"
PAGE = HERE.parents[1] / "docs" / "performance.md"
PICTURE = HERE.parents[1] / "docs" / "schemes.png"
README = HERE.parents[1] / "README.md"
README_BENCHMARKS = ("main_job", "peers")
README_MARKS = ("<!-- measured: made by make bench -->", "<!-- end of measured -->")


class Benchmark(NamedTuple):
    """One section of the page, made by the program of the benchmark's name."""

    title: str
    arguments: str = ""
    """What the program is called with; in capitals what is another path on every machine."""
    about: str = ""
    """What has to be known to read it: above all, what stands in the way of a bar that is missed."""


BENCHMARKS = {
    "main_job": Benchmark("The main job"),
    "peers": Benchmark(
        "Beside vLLM and llama.cpp on the same machine",
        ' --vllm "PYTHON peer_vllm.py MODEL_DIR" --llamacpp "PYTHON peer_llamacpp.py GGUF"',
        "We answer over gRPC, client and server on the same cores; the peers run inside their "
        "programs. The bars were set on a machine without AVX-512, where vLLM is several "
        "times slower. With it, three times vLLM at 4,096 x 32 is more than both cores can do "
        "in float32 at their peak; what is left in int8 and bf16 is attention at its limit "
        "and the messages of 32 streams.",
    ),
    "linears": Benchmark("Products with the weights"),
    "decode": Benchmark(
        "Decode steps and the machine's limits",
        about="One sequence has one query for each row: to keep the order of summation that makes "
        "answers exact, keys are transposed before they are multiplied, and that, not the "
        "memory, limits attention and its growth with position. A step over 8,000 shared rows "
        "is bound by arithmetic: in float32 the products of attention alone take more than "
        "the step over 1,024.",
    ),
    "hit_equality": Benchmark("A hit changes nothing"),
    "model_equality": Benchmark("The model is the model"),
    "quality": Benchmark("What smaller formats cost"),
    "cache_ops": Benchmark("Cache operations", " --sglang PYTHON --vllm-python PYTHON"),
    "schemes": Benchmark("The schemes"),
    "tier": Benchmark("A tier behind the pool"),
    "service": Benchmark(
        "The service beside the model",
        about="The scripted model costs next to nothing, so that what is measured is the service. Its "
        "client runs on the same cores and leaves messages as bytes.",
    ),
    "eviction": Benchmark("Eviction on recorded traffic"),
    "load": Benchmark("Loading, watching and diagnosing"),
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
        is_long = isinstance(value, float) and abs(value) >= 1000  # which three digits would show as a power
        shown = f"{value:,.0f}" if is_long else f"{value:.3g}" if isinstance(value, float) else str(value)
        holds = {True: "yes", False: "**no**", None: ""}[row["holds"]]
        cells = [row["name"], f"{shown} {row['unit']}", row["spread"], row["bar"], holds, row["note"]]
        lines.append("| " + " | ".join("" if cell is None else str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def render() -> None:
    """Write the page, and the table in the README, from the newest results of each benchmark."""
    parts = ["# Measured\n", "Made by `make bench`; nothing on this page is typed by hand.\n"]
    for name, benchmark in BENCHMARKS.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            result = json.loads(path.read_text())
            made_by = f"`tests/benchmarks/{name}.py{benchmark.arguments}`"
            parts.append(f"## {benchmark.title}\n\n{made_by}, {result['date']}, {result['machine']}\n")
            if benchmark.about:
                parts.append(textwrap.fill(benchmark.about, 118) + "\n")
            parts.append(table(result["rows"]) + "\n")
    PAGE.write_text("\n".join(parts))
    paths = [RESULTS / f"{name}.json" for name in README_BENCHMARKS]
    results = [json.loads(path.read_text()) for path in paths if path.exists()]
    machines = sorted({f"{result['machine']}, {result['date']}" for result in results})
    rows = [row for result in results for row in result["rows"]]
    before, _, rest = README.read_text().partition(README_MARKS[0])
    _, _, after = rest.partition(README_MARKS[1])
    README.write_text(
        "\n".join((before + README_MARKS[0], *machines, "", table(rows), README_MARKS[1] + after))
    )


def run(name: str, arguments: list[str]) -> bool:
    """Run one benchmark and keep the rows it made; whether it ended well and every bar was reached."""
    rows = RESULTS / f"{name}.rows.json"
    rows.unlink(missing_ok=True)
    status = subprocess.run([sys.executable, HERE / f"{name}.py", "--json", rows, *arguments]).returncode
    if rows.exists():
        result = {
            "date": datetime.date.today().isoformat(),
            "machine": describe_machine(),
            "rows": json.loads(rows.read_text()),
        }
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1))
    return status == 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=BENCHMARKS, default=list(BENCHMARKS))
    parser.add_argument(
        "--vllm", help="the command that starts vLLM as a peer; without any peer peers.py is left out"
    )
    parser.add_argument("--llamacpp", help="the command that starts llama.cpp as a peer")
    parser.add_argument("--sglang", metavar="PYTHON", help="measure SGLang's cache in cache_ops.py too")
    parser.add_argument("--vllm-python", metavar="PYTHON", help="measure vLLM's cache in cache_ops.py too")
    args = parser.parse_args()
    cache_peers = {"--sglang": args.sglang, "--vllm-python": args.vllm_python}
    arguments = {
        "peers": [
            word
            for option in ("--vllm", "--llamacpp")
            if (command := getattr(args, option[2:]))
            for word in (option, command)
        ],
        "schemes": ["--picture", str(PICTURE)],
        "cache_ops": [word for option, python in cache_peers.items() if python for word in (option, python)],
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in args.only:
        if name == "peers" and not arguments["peers"]:
            print("peers: left out, neither --vllm nor --llamacpp is given")
            continue
        print(f"== {name}", flush=True)
        if not run(name, arguments.get(name, [])):
            failed.append(name)
    render()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
