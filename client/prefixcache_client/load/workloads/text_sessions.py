"""Recorded sessions of agents, in their own words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Literal, Self

from prefixcache.replay import LeftOut, TraceError
from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.load.session import Session, Turn
from prefixcache_client.load.workloads.amount import Amount
from prefixcache_client.load.workloads.flags import check_settings, describe, setting
from prefixcache_client.load.workloads.limits import Limits
from prefixcache_client.load.workloads.recorded_calls import Call, read_calls, session_files
from prefixcache_client.messages import Message, Prompt

_REMEDY = "leave out what is too long (--clip)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSessions:
    """Sessions of text, one a file, sent turn by turn.

    A call whose input goes on from the one before is the next turn of a conversation: its prompt is all
    inputs so far and the answers to them, as they were recorded or as the server gives them now. Any other
    call begins anew.

    How many tokens a text has is up to the server's model, and estimated here.
    """

    recording: Path = setting(
        "a .jsonl file with `timestamp`, `input` and `output` a line, or a folder of such files"
    )
    system: Path | None = setting("file with a text to put before every prompt", default=None, metavar="FILE")
    answers: Literal["recorded", "ours"] = setting(
        "whose answers the conversations go on from", default="recorded"
    )
    output_tokens: Amount | None = setting(
        "tokens to generate (default: as many as were recorded)", default=None, least=1
    )
    think_scale: float = setting(
        "wait so many times as long between calls as when they were recorded", default=0.0
    )
    characters_per_token: float = setting("to estimate lengths by", default=4.0, least=0.1)
    limit: int | None = setting("stop after so many sessions", default=None, least=1)
    clip: bool = setting(
        "end a session before a prompt that does not fit, instead of refusing it", default=False
    )
    strict: bool = setting(
        "end at the first line that is broken, instead of naming it and going on", default=False
    )
    prompt_form: Literal["messages", "text"] = setting("form of the prompts", default="messages")
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    notes: tuple[str, ...] = ()
    """What was left out or cut off, known once the workload is fitted."""
    num_sessions: int | None = None
    """Those of which a turn fits, known once the workload is fitted."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def description(self) -> dict[str, str | int | float]:
        return describe("text-sessions", self)

    def fitted_to(self, server: Mapping[str, str | int | float]) -> Self:
        """The same for a server that describes itself so. Reads all sessions.

        Raises PromptTooLongError for a prompt that is estimated not to fit when none may be left out,
        TraceError for a broken recording, or OSError.
        """
        left_out = LeftOut()
        fitted = replace(self, limits=Limits.of(server))
        num_sessions = num_turns = num_sent = 0
        system = self._system()
        for calls in self._recorded(left_out):
            turns = fitted._turns(calls, system)
            num_sessions += bool(turns)
            num_turns += len(calls)
            num_sent += len(turns)
        if not num_sent:
            raise TraceError(f"{self.recording} has no session that can be sent")
        notes = left_out.sentences()
        if num_sent < num_turns:
            notes.append(f"does not fit into the context: {num_turns - num_sent:,} of {num_turns:,} calls")
        return replace(fitted, notes=tuple(notes), num_sessions=num_sessions)

    def warm_up(self) -> Iterator[Session]:
        """Nothing: a recording begins with an empty cache."""
        yield from ()

    def sessions(self) -> Iterator[Session]:
        """Raises TraceError for a broken recording, or OSError."""
        public_messages = int(self.system is not None and self.prompt_form == "messages")
        system = self._system()
        for calls in self._recorded(LeftOut()):
            if turns := self._turns(calls, system):
                yield Session(turns=tuple(turns), public_messages=public_messages)

    def _recorded(self, left_out: LeftOut) -> Iterator[list[Call]]:
        """The calls of each session that has any."""
        recorded = (
            read_calls(path, on_broken=None if self.strict else left_out)
            for path in session_files(self.recording)
        )
        return islice(filter(None, recorded), self.limit)

    def _turns(self, calls: list[Call], system: str | None) -> list[Turn]:
        """The turns of one session. One that does not fit ends it, or raises PromptTooLongError."""
        turns: list[Turn] = []
        talk: list[Message] = []
        num_tokens = 0  # of the prompt, estimated
        seconds = calls[0].seconds
        for call in calls:
            max_tokens = self._max_tokens(call)
            if call.growth is None:
                talk = [] if system is None else [_message("system", system)]
                num_tokens = self._num_tokens(system or "")
            asked = _message("user", call.input if call.growth is None else call.growth)
            if talk and talk[-1]["role"] == "user":  # not answered; many templates want roles in turn
                talk[-1] = _message("user", talk[-1]["content"] + asked["content"])
            else:
                talk.append(asked)
            num_tokens += self._num_tokens(asked["content"])
            if not self.limits.fits(num_tokens, max_tokens):
                if self.clip:
                    break
                self.limits.require_room(
                    f"a prompt of {self.recording}, estimated,", num_tokens, max_tokens, remedy=_REMEDY
                )
            continues = self.answers == "ours" and call.growth is not None
            turns.append(
                Turn(
                    prompt=self._prompt([asked] if continues else talk),
                    max_tokens=max_tokens,
                    continues=continues,
                    think_seconds=(call.seconds - seconds) * self.think_scale,
                )
            )
            seconds = call.seconds
            if self.answers == "ours":
                num_tokens += max_tokens
            elif call.output:
                talk.append(_message("assistant", call.output))
                num_tokens += self._num_tokens(call.output)
        return turns

    def _max_tokens(self, call: Call) -> int:
        if self.output_tokens is None:
            return max(1, self._num_tokens(call.output))
        return self.output_tokens.draw_count(Random(f"{self.seed}-{call.seconds}"))

    def _num_tokens(self, text: str) -> int:
        return math.ceil(len(text) / self.characters_per_token)

    def _prompt(self, messages: list[Message]) -> Prompt:
        if self.prompt_form == "messages":
            return list(messages)
        return "".join(message["content"] for message in messages)

    def _system(self) -> str | None:
        """Raises PrefixCacheClientError for a file that is no text, or OSError."""
        if self.system is None:
            return None
        try:
            return self.system.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise PrefixCacheClientError(f"{self.system} is no UTF-8 text: {error}") from None


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
