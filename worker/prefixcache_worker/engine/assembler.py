"""Turns the tokens of one choice into text that can be sent."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import NamedTuple


class Assembled(NamedTuple):
    """What a token made ready to be sent."""

    text: str
    met_stop: bool


class Assembler:
    """Joins token bytes into whole characters and holds back what might become a stop text.

    Serves streaming and whole answers alike: the pieces of a choice, joined, are its text. No piece
    ends inside a character; no piece contains any of a stop text; bytes that are no UTF-8 come out as
    U+FFFD, as in a decode of all the bytes at once.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stop: tuple[str, ...] = ()) -> None:
        assert all(stop), "an empty stop text would stop everything"
        self._token_bytes = token_bytes
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""  # text not sent yet: the longest ending that begins a stop text

    def push(self, token_id: int) -> Assembled:
        """Take one token. O(bytes of the token * stop texts)."""
        return self._take(self._decoder.decode(self._token_bytes(token_id)))

    def finish(self) -> str:
        """The rest, when the choice ends for another reason than a stop text.

        An incomplete character comes out as U+FFFD; and should that complete a stop text, the text
        still ends before it.
        """
        text, met_stop = self._take(self._decoder.decode(b"", final=True))
        if met_stop:
            return text
        rest, self._held = self._held, ""
        return text + rest

    def _take(self, text: str) -> Assembled:
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            text, self._held = self._held[: min(found)], ""
            return Assembled(text, True)
        keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        ready = self._held[: len(self._held) - keep]
        self._held = self._held[len(ready) :]
        return Assembled(ready, False)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest ending of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
