"""What the subcommands write: JSON, sizes, streamed text."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console, RenderableType

from prefixcache_client.answers import Delta, Event, Generation, generation_from_events

T = TypeVar("T")


def console(*, stderr: bool = False) -> Console:
    """Where tables and progress go. Text from a model or a user is never read as markup."""
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)


def write_json(value: Any, path: str) -> None:
    """Write a value made of dataclasses, lists and plain values to a file, or to standard output for "-"."""
    text = json.dumps(value, default=_plain, indent=2, ensure_ascii=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        Path(path).write_text(text, encoding="utf-8")


def write_result(result: T, json_path: str | None, draw: Callable[[T], RenderableType]) -> None:
    """Print a result as `draw` shows it, and write it as JSON to `json_path`; for "-" only the JSON."""
    if json_path is not None:
        write_json(result, json_path)
    if json_path != "-":
        console().print(draw(result))


def write_stream(events: Iterable[Event]) -> Generation:
    """Write each piece of a one-choice answer to standard output as it arrives; the whole answer."""
    seen = []
    try:
        for event in events:
            seen.append(event)
            if isinstance(event, Delta):
                sys.stdout.write(printable(event.text))
                sys.stdout.flush()
    finally:
        if seen:  # whatever follows, an error too, begins a line of its own
            sys.stdout.write("\n")
            sys.stdout.flush()
    return generation_from_events(seen)


def printable(text: str) -> str:
    """The text without what could steer a terminal: control characters become U+FFFD."""
    return "".join(
        char if char in "\n\t" or ord(char) >= 160 or 32 <= ord(char) < 127 else "�" for char in text
    )


def usage_line(generation: Generation) -> str:
    """One line on what an answer cost."""
    usage, timing = generation.usage, generation.timing
    return (
        f"{count(usage.prompt_tokens, 'prompt token')} = {usage.cached_tokens:,} cached"
        f" + {usage.computed_tokens:,} computed, {usage.completion_tokens:,} generated"
        f"{', approximately' if usage.is_approximate else ''}; "
        f"first token after {seconds(timing.first_token_seconds)}, last after {seconds(timing.total_seconds)}"
    )


def seconds(duration: float) -> str:
    """A duration with the digits that matter: `83 ms`, `1.24 s`."""
    return f"{duration * 1000:,.0f} ms" if duration < 1 else f"{duration:,.2f} s"


def size(num_bytes: float) -> str:
    """A number of bytes: `1.5 MiB`."""
    if num_bytes < 1024:
        return f"{num_bytes:,.0f} B"
    power = min(int(math.log2(num_bytes) / 10), 4)
    return f"{num_bytes / 1024**power:,.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def count(number: int, noun: str) -> str:
    """A number of things: `1 block`, `1,760 blocks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def share(part: float, whole: float) -> str:
    """A part of a whole in percent: `96.3 %`; a dash when the whole is zero."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
