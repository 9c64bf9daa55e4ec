"""The settings of a workload as flags of a command."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any, TypeVar

from prefixcache_client.command_line.arguments import positive_int

_Workload = TypeVar("_Workload", bound=Any)


def add_workload_flags(parser: argparse.ArgumentParser, workload: type) -> None:
    """A flag for each field that has a help text."""
    for field in fields(workload):
        if "help" in field.metadata:
            parser.add_argument(
                f"--{field.name.replace('_', '-')}",
                type=positive_int,
                default=field.default,
                metavar="N",
                help=f"{field.metadata['help']} (default: %(default)s)",
            )


def workload_from(arguments: argparse.Namespace, workload: type[_Workload], *, seed: int) -> _Workload:
    """The workload with the settings that `add_workload_flags` read."""
    names = [field.name for field in fields(workload) if "help" in field.metadata]
    made: _Workload = workload(**{name: getattr(arguments, name) for name in names}, seed=seed)
    return made
