"""Hostile messages to one worker: every answer has a documented status, and nothing is left behind.

Usage: soak_messages.py [--messages 2000]

The message that fails is made as small as it can be and printed. Exit status: 0, or 1 when one failed.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from support.fuzzed_service import fuzz


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=2_000, metavar="N")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # refusals fill pages
    for code, count in fuzz(options.messages).most_common():
        print(f"{count:>10,} {code.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
