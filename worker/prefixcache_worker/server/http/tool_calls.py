"""From the text of an answer to what it says and what it calls."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum, auto

from prefixcache_worker.model.tool_text import TOOL_CALL_BEGIN, TOOL_CALL_END


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of a function begins; its arguments follow."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of the arguments of the call that began last."""

    index: int
    text: str


Piece = Content | CallBegin | CallArguments

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')
_MAX_HEAD_LENGTH = 1024
"""A name has at most 128 characters; what is longer and no head yet will be none."""


class _State(Enum):
    TEXT = auto()
    HEAD = auto()
    """Behind TOOL_CALL_BEGIN, before the arguments."""
    ARGUMENTS = auto()
    TAIL = auto()
    """Behind the arguments, up to TOOL_CALL_END."""


class ToolCallParser:
    """Tells text and calls apart, as they come.

    Contents and argument texts, joined, do not depend on how the text was cut. White space before a call,
    and alone behind the last, is left out. A block that begins as no call does is text, as it stands, since
    nothing may be lost. Calls that the end of the answer cut short keep what they have.
    """

    def __init__(self) -> None:
        self._state = _State.TEXT
        self._held = ""
        self._num_calls = 0
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    @property
    def has_called(self) -> bool:
        """Whether any call has begun."""
        return self._num_calls > 0

    def push(self, text: str) -> list[Piece]:
        """Take more of the answer. O(characters)."""
        self._held += text
        pieces: list[Piece] = []
        while (piece := self._next()) is not None:
            pieces.append(piece)
        return [piece for piece in pieces if not isinstance(piece, Content) or piece.text]

    def finish(self) -> list[Piece]:
        """What is still held back, when the answer has ended."""
        if self._state is _State.HEAD:
            rest = TOOL_CALL_BEGIN + self._held
        else:
            rest = self._held if self._state is _State.TEXT else ""
        self._held = ""
        return [Content(rest)] if rest and not (self.has_called and rest.isspace()) else []

    def _next(self) -> Piece | None:
        """The next piece, maybe an empty one; None when more text is needed."""
        match self._state:
            case _State.TEXT:
                return self._take_text()
            case _State.HEAD:
                return self._take_head()
            case _State.ARGUMENTS:
                return self._take_arguments()
        at = self._held.find(TOOL_CALL_END)
        if at < 0:
            return None
        self._held = self._held[at + len(TOOL_CALL_END) :]
        self._state = _State.TEXT
        return Content("")

    def _take_text(self) -> Piece | None:
        at = self._held.find(TOOL_CALL_BEGIN)
        if at >= 0:
            text, self._held = self._held[:at], self._held[at + len(TOOL_CALL_BEGIN) :]
            self._state = _State.HEAD
            return Content(text.rstrip())
        keep = self._held.rfind("<")
        end = keep if keep >= 0 and TOOL_CALL_BEGIN.startswith(self._held[keep:]) else len(self._held)
        end = len(self._held[:end].rstrip())  # white space is text only if no call follows
        if end == 0:
            return None
        text, self._held = self._held[:end], self._held[end:]
        return Content(text)

    def _take_head(self) -> Piece | None:
        head = _HEAD.match(self._held)
        if head is not None:
            self._held = self._held[head.end() :]
            self._state = _State.ARGUMENTS
            self._depth = 0
            self._num_calls += 1
            name: str = json.loads(head[1], strict=False)
            return CallBegin(self._num_calls - 1, name)
        if TOOL_CALL_END in self._held or len(self._held) > _MAX_HEAD_LENGTH:
            self._held, text = "", TOOL_CALL_BEGIN + self._held
            self._state = _State.TEXT
            return Content(text)
        return None

    def _take_arguments(self) -> Piece | None:
        if not self._held:
            return None
        for position, character in enumerate(self._held):
            if self._is_last_of_object(character):
                text, self._held = self._held[: position + 1], self._held[position + 1 :]
                self._state = _State.TAIL
                return CallArguments(self._num_calls - 1, text)
        text, self._held = self._held, ""
        return CallArguments(self._num_calls - 1, text)

    def _is_last_of_object(self, character: str) -> bool:
        """Take one character of JSON text that begins with an object."""
        if self._in_string:
            self._in_string = self._is_escaped or character != '"'
            self._is_escaped = character == "\\" and not self._is_escaped
            return False
        match character:
            case '"':
                self._in_string = True
            case "{" | "[":
                self._depth += 1
            case "}" | "]":
                self._depth -= 1
        return self._depth == 0
