"""Turns the tokens of one choice into text that can be sent."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import NamedTuple


class Assembled(NamedTuple):
    """What a token made ready to be sent."""

    text: str
    stop: str | None
    """The stop text that ended it."""


class Assembler:
    """Joins token bytes into whole characters and holds back what might become a stop text.

    Serves streaming and whole answers alike: the pieces of a choice, joined, are its text. No piece
    ends inside a character; no piece contains any of a stop text, unless the last one is to end with it;
    bytes that are no UTF-8 come out as U+FFFD, as in a decode of all the bytes at once.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        stop: tuple[str, ...] = (),
        *,
        include_stop: bool = False,
    ) -> None:
        assert all(stop), "an empty stop text would stop everything"
        self._token_bytes = token_bytes
        self._stop = stop
        self._include_stop = include_stop
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""  # text not sent yet: the longest ending that begins a stop text

    def push(self, token_id: int, *, may_stop: bool = True) -> Assembled:
        """Take one token; a stop text that it completes is only text unless it `may_stop`.

        Of several stop texts the one that begins first counts, then the one that stands first in the list.
        O(bytes of the token * stop texts).
        """
        return self._take(self._decoder.decode(self._token_bytes(token_id)), may_stop)

    def finish(self) -> Assembled:
        """The rest, when the choice ends for another reason than a stop text.

        An incomplete character comes out as U+FFFD; and should that complete a stop text, the text
        still ends there.
        """
        text, stop = self._take(self._decoder.decode(b"", final=True), may_stop=True)
        if stop is not None:
            return Assembled(text, stop)
        rest, self._held = self._held, ""
        return Assembled(text + rest, None)

    def _take(self, text: str, may_stop: bool) -> Assembled:
        num_seen = len(self._held)
        self._held += text
        # What was complete in the text seen before was not to stop the answer then, and is not to now.
        found = [
            (at, stop)
            for stop in self._stop
            if may_stop and (at := self._held.find(stop, max(0, num_seen - len(stop) + 1))) >= 0
        ]
        if found:
            at, stop = min(found, key=lambda match: match[0])
            text, self._held = self._held[: at + len(stop) * self._include_stop], ""
            return Assembled(text, stop)
        keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        ready = self._held[: len(self._held) - keep]
        self._held = self._held[len(ready) :]
        return Assembled(ready, None)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest ending of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
