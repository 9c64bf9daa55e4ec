"""What the service costs beside the model: streams through gRPC, first messages, health and abort under load,
what another tenant's hits tell, and a restart.

Each section is a file of `service_sections/` that makes rows.

Usage: service.py [--rounds 5] [--sections NAME ...] [--json FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from report import Row, print_rows
from service_sections.probe import probe_rows
from service_sections.responsiveness import responsiveness_rows
from service_sections.restart import restart_rows
from service_sections.step_share import step_share_rows
from service_sections.throughput import throughput_rows

from prefixcache_client.worker_process import sigterm_unwinds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    sections: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
        "throughput": lambda args: throughput_rows(args.rounds),
        "responsiveness": lambda args: responsiveness_rows(),
        "step_share": lambda args: step_share_rows(),
        "probe": lambda args: probe_rows(),
        "restart": lambda args: restart_rows(args.rounds),
    }
    parser.add_argument("--sections", nargs="*", choices=sections, default=list(sections))
    args = parser.parse_args()
    with sigterm_unwinds():
        rows = [row for name in args.sections for row in sections[name](args)]
    print_rows(rows, args.json)


if __name__ == "__main__":
    main()
