"""What observing and loading the service takes, and what it finds.

Each section is a file of `load_sections/` that makes rows.

Usage: load.py [--sections NAME ...] [--json FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from load_sections.doctor import doctor_rows
from load_sections.rate import rate_rows
from load_sections.scrape import scrape_rows
from load_sections.ui import ui_rows
from report import Row, print_rows

from prefixcache_client.worker_process import sigterm_unwinds

SECTIONS: dict[str, Callable[[], list[Row]]] = {
    "rate": rate_rows,
    "scrape": scrape_rows,
    "ui": ui_rows,
    "doctor": doctor_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sections", nargs="*", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--json")
    args = parser.parse_args()
    with sigterm_unwinds():
        rows = [row for name in args.sections for row in SECTIONS[name]()]
    print_rows(rows, args.json)


if __name__ == "__main__":
    main()
