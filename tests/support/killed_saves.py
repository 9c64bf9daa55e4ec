"""Saves that end in the middle, as when the power fails: nothing of the process runs any more."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class KilledSave(NamedTuple):
    """What a process that was killed has left."""

    signal: int
    file: bytes
    """What is at the path."""
    num_bytes_aside: list[int]
    """Sizes of all other files in the folder."""


def kill_at_byte(num_bytes: int) -> None:
    """From now on, the kernel ends this process when a file would become longer than this."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def kill_before(function: str, call: int = 1) -> None:
    """This process ends instead of calling a function of `os` for the given time."""
    original = getattr(os, function)
    num_calls = 0

    def call_or_die(*arguments: object) -> object:
        nonlocal num_calls
        num_calls += 1
        if num_calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)

    setattr(os, function, call_or_die)


def killed_save(path: Path, save: Callable[[], object], prepare: Callable[[], object]) -> KilledSave:
    """Save in a process of its own, which `prepare` has made sure to be killed.

    Requires: this process has one thread.
    """
    child = os.fork()
    if child == 0:
        try:
            prepare()
            save()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    aside = [other.stat().st_size for other in path.parent.iterdir() if other != path]
    return KilledSave(os.WTERMSIG(status), path.read_bytes(), aside)
