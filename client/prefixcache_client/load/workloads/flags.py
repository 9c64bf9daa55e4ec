"""The settings of a workload: as fields of a dataclass, as flags of a command, as a description."""

from __future__ import annotations

import argparse
import math
import types
from collections.abc import Callable
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from prefixcache_client.load.workloads.amount import Amount

_Workload = TypeVar("_Workload")
_MOST = 1e9
"""Of any number: more could not be sent, and would take all memory before it is."""
_METAVARS = {int: "N", float: "X", Amount: "AMOUNT", Path: "PATH"}


def setting(
    help: str,
    *,
    default: Any = MISSING,
    least: float = 0,
    most: float = _MOST,
    metavar: str | None = None,
) -> Any:
    """A field of a workload that is also a flag. `least` and `most` bound a number. Without default it is
    required."""
    metadata = {"help": help, "least": least, "most": most, "metavar": metavar}
    return field(default=default, metadata=metadata)


def check_settings(workload: Any) -> None:
    """Raise ValueError for a number beyond its bounds."""
    for name, a_field in _settings(type(workload)):
        value = getattr(workload, name)
        try:
            _check(value, a_field)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None


def add_workload_flags(parser: argparse.ArgumentParser, workload: type) -> None:
    """A flag for each setting."""
    hints = get_type_hints(workload)
    group = parser.add_argument_group(
        "workload", "An AMOUNT is 64, or 32..128 (uniform), or 64~0.5 (lognormal)."
    )
    for name, a_field in _settings(workload):
        kind = _plain(hints[name])
        flag, help_ = f"--{name.replace('_', '-')}", a_field.metadata["help"]
        if kind is bool:
            group.add_argument(flag, action="store_true", help=help_)
            continue
        is_required = a_field.default is MISSING
        if a_field.default is not MISSING and a_field.default is not None:
            help_ += f" (default: {a_field.default})"
        if get_origin(kind) is Literal:
            choices = get_args(kind)
            group.add_argument(flag, choices=choices, default=a_field.default, help=help_)
        else:
            group.add_argument(
                flag,
                type=_parser(kind, a_field),
                required=is_required,
                default=None if is_required else a_field.default,
                metavar=a_field.metadata["metavar"] or _METAVARS[kind],
                help=help_,
            )


def workload_from(arguments: argparse.Namespace, workload: type[_Workload], *, seed: int) -> _Workload:
    """The workload with the settings that `add_workload_flags` read. Raises ValueError when they disagree."""
    settings: dict[str, Any] = {name: getattr(arguments, name) for name, _ in _settings(workload)}
    settings["seed"] = seed
    return workload(**settings)


def describe(name: str, workload: Any) -> dict[str, str | int | float]:
    """What makes a workload: its name, and every setting that is not None."""
    values = {"kind": name, "seed": workload.seed}
    for setting_name, _ in _settings(type(workload)):
        value = getattr(workload, setting_name)
        if value is not None:
            values[setting_name] = value if isinstance(value, int | float) else str(value)
    limits = workload.limits
    values |= {"vocabulary_size": limits.vocabulary_size, "block_size": limits.block_size}
    if limits.context_length is not None:
        values["context_length"] = limits.context_length
    return values


def _settings(workload: type) -> list[tuple[str, Field[Any]]]:
    return [(a_field.name, a_field) for a_field in fields(workload) if "help" in a_field.metadata]


def _plain(hint: Any) -> Any:
    """The type that a setting has when it is not None."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (kind for kind in get_args(hint) if kind is not type(None))
    return hint


def _parser(kind: Any, a_field: Field[Any]) -> Callable[[str], Any]:
    parse: Callable[[str], Any] = Amount.parse if kind == Amount else kind

    def parsed(text: str) -> Any:
        try:
            value = parse(text)
        except ValueError as error:
            wanted = {int: "an integer", float: "a number"}.get(kind)
            message = f"must be {wanted}, got {text!r}" if wanted else str(error)
            raise argparse.ArgumentTypeError(message) from None
        try:
            _check(value, a_field)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return value

    return parsed


def _check(value: Any, a_field: Field[Any]) -> None:
    least, most = a_field.metadata["least"], a_field.metadata["most"]
    is_amount, is_number = isinstance(value, Amount), isinstance(value, int | float)
    if (is_amount and not value.is_at_least(least)) or (is_number and not least <= value < math.inf):
        raise ValueError(f"must be at least {least:g}, got {value}")
    if (is_amount and value.most > most) or (is_number and value > most):
        raise ValueError(f"must be at most {most:,g}, got {value}")
