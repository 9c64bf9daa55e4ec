"""What `prefixcache plan` becomes: how many requests fit into a memory, and what to ask a worker for.

Exit codes: 0 done, 1 it does not fit or the model cannot be read, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.memory_size import parse_memory
from prefixcache_worker.server.host_memory import host_memory_bytes
from prefixcache_worker.settings import KV_DTYPES, KV_SCALES

if TYPE_CHECKING:
    from prefixcache_worker.planning.memory_plan import MemoryPlan
    from prefixcache_worker.planning.planned_model import PlannedModel

USUAL_TOKENS = 2048


def main(arguments: Sequence[str]) -> int:
    """Print the plan."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    # Here, because torch takes seconds to import: --help and a wrong flag must not wait for it.
    from prefixcache_worker.planning.plan_text import plan_text

    try:
        plan = _plan(parser, parsed)
        if parsed.json not in (None, "-"):
            Path(parsed.json).write_text(json.dumps(plan.as_json(), indent=1) + "\n")
    except (ConfigError, OSError) as error:
        print(f"prefixcache plan: {error}", file=sys.stderr)
        return 1
    print(json.dumps(plan.as_json(), indent=1) if parsed.json == "-" else plan_text(plan))
    return 0


def _plan(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> MemoryPlan:
    from prefixcache_worker.attention.kv_format import choose_format
    from prefixcache_worker.planning.kv_plan import RequestLoad
    from prefixcache_worker.planning.memory_plan import plan_memory

    model = _model(parser, parsed)
    weight_bytes = parsed.weights_memory
    if weight_bytes is None:
        if model.weight_bytes is None:
            parser.error("--weights-memory: say how much the weights take, which a shape does not tell")
        weight_bytes = model.weight_bytes
    longest = parsed.tokens or min(USUAL_TOKENS, model.context_length or USUAL_TOKENS)
    mean = longest if parsed.mean_tokens is None else parsed.mean_tokens
    if mean > longest:
        parser.error(f"--mean-tokens: {mean} are more than the {longest} of the longest request")
    if parsed.prefix_tokens > mean:
        parser.error(f"--prefix-tokens: {parsed.prefix_tokens} are more than the {mean} of a request")
    return plan_memory(
        model,
        RequestLoad(longest_tokens=longest, mean_tokens=mean, prefix_tokens=parsed.prefix_tokens),
        memory_bytes=parsed.memory,
        weight_bytes=weight_bytes,
        headroom=parsed.headroom,
        kv_format=choose_format(parsed.kv_dtype, parsed.kv_scales, model.shape),
        block_size=parsed.block_size,
        peak_requests=parsed.requests,
    )


def _model(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> PlannedModel:
    from prefixcache_worker.planning.planned_model import model_of_shape, read_model

    sizes = (parsed.layers, parsed.kv_heads, parsed.head_dim)
    if sizes == (None, None, None):
        return read_model(parsed.model, parsed.weights)
    if parsed.model is not None:
        parser.error("--model: give a model or a shape, not both")
    if None in sizes:
        parser.error("a shape is --layers, --kv-heads and --head-dim together")
    return model_of_shape(num_layers=parsed.layers, num_kv_heads=parsed.kv_heads, head_dim=parsed.head_dim)


_LIMIT = 2**60


def _number(kind: Callable[[str], float], minimum: float, expects: str) -> Callable[[str], float]:
    def parse(value: str) -> float:
        try:
            number = kind(value)
        except ValueError:
            number = minimum - 1
        if number >= _LIMIT:
            raise argparse.ArgumentTypeError(f"must be less than {_LIMIT:,}, got {value!r}")
        if not minimum <= number:
            raise argparse.ArgumentTypeError(f"must be {expects}, got {value!r}")
        return number

    return parse


_count = _number(int, 1, "a whole number of at least 1")
_tokens = _number(int, 0, "a whole number of at least 0")
_memory = _number(parse_memory, 1, "a memory size such as 24GiB")
_share = _number(float, 0, "a number of at least 0")


def _block_size(value: str) -> int:
    size = int(_count(value))
    if size & (size - 1):
        raise argparse.ArgumentTypeError(f"must be a power of two, got {value!r}")
    return size


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prefixcache plan",
        description="How much memory KV takes, how many requests fit, and what to ask a worker for. The "
        "pool that it proposes is 1.5 times what the load holds at its peak.",
        allow_abbrev=False,
    )
    model = parser.add_argument_group("the model", "A file or folder, or the shape of its KV.")
    model.add_argument(
        "--model", metavar="PATH", help="a .gguf file or a model folder; default: the built-in one"
    )
    model.add_argument("--layers", type=_count, metavar="N")
    model.add_argument(
        "--kv-heads", type=_count, metavar="N", help="heads of keys and values, not of queries"
    )
    model.add_argument("--head-dim", type=_count, metavar="N")
    memory = parser.add_argument_group("the memory")
    memory.add_argument(
        "--memory",
        type=_memory,
        default=host_memory_bytes(),
        metavar="SIZE",
        help="of weights and KV together; default: this machine's",
    )
    memory.add_argument(
        "--weights-memory", type=_memory, metavar="SIZE", help="what the weights take, if known"
    )
    memory.add_argument(
        "--weights",
        choices=("fp32", "bf16", "int8"),
        default="fp32",
        help="as for serve; default: %(default)s",
    )
    memory.add_argument(
        "--headroom",
        type=_share,
        default=0.25,
        metavar="SHARE",
        help="of the pool, on top of it; default: %(default)s",
    )
    kv = parser.add_argument_group("the KV")
    kv.add_argument("--kv-dtype", choices=KV_DTYPES, default="fp16", help="default: %(default)s")
    kv.add_argument("--kv-scales", choices=KV_SCALES, help="of int8 and int4")
    kv.add_argument("--block-size", type=_block_size, metavar="TOKENS", help="default: what it proposes")
    load = parser.add_argument_group("the load")
    load.add_argument(
        "--tokens",
        type=_count,
        metavar="N",
        help=f"of the longest request; default: {USUAL_TOKENS}, or the context",
    )
    load.add_argument(
        "--mean-tokens", type=_count, metavar="N", help="of a request on average; default: --tokens"
    )
    load.add_argument(
        "--prefix-tokens", type=_tokens, default=0, metavar="N", help="that all requests begin with"
    )
    load.add_argument("--requests", type=_count, metavar="N", help="at once at the peak; default: what fits")
    parser.add_argument(
        "--json", metavar="FILE", help="write the figures to this file; '-': to standard output"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
