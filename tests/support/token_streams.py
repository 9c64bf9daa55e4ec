"""Fixed token streams that share no token, named by a letter. The cases are told in them."""

from __future__ import annotations

PERIOD = 97


def stream(letter: str, stop: int, start: int = 0) -> list[int]:
    """Tokens `start` to `stop` of the stream; its tokens repeat after `PERIOD`."""
    first_token = (ord(letter) - ord("a")) * PERIOD
    return [first_token + position % PERIOD for position in range(start, stop)]
