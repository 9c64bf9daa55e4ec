"""Files that are not as they were written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def each_damage(path: Path) -> Iterator[None]:
    """The file with one bit flipped, once in every byte; then cut off, one byte shorter each time.

    Flips are undone. Requires: nobody writes to the file meanwhile.
    """
    content = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for offset, byte in enumerate(content):
            os.pwrite(file.fileno(), bytes([byte ^ 1 << offset % 8]), offset)
            yield
            os.pwrite(file.fileno(), bytes([byte]), offset)
    assert path.read_bytes() == content
    for num_bytes in reversed(range(len(content))):
        os.truncate(path, num_bytes)
        yield
