"""Work that must not hold up the asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

LONG_MESSAGE_BYTES = 4096
"""Messages up to this size are tokenised at once (about a millisecond), longer ones in a thread."""

_T = TypeVar("_T")


async def off_loop(function: Callable[[], _T], *, num_bytes: int, executor: Executor | None = None) -> _T:
    """What the function returns. It is called here if the message is short, and else in a thread.

    With an `executor` it is called there: so a message with a rule goes to `ConstraintCompiler.executor`,
    and nothing but other rules waits for a hostile one.
    """
    if executor is not None:
        return await asyncio.get_running_loop().run_in_executor(executor, function)
    return function() if num_bytes <= LONG_MESSAGE_BYTES else await asyncio.to_thread(function)
