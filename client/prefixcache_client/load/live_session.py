"""A session while it is sent: what has been said in it so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.load.session import Session, Turn
from prefixcache_client.load.target import Answered
from prefixcache_client.messages import Message, Prompt


class LiveSession:
    """Makes the prompts of one session, each when the answer before it is there."""

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.number = number
        """Counts from 0, in the order of sending."""
        self.num_sent = 0
        """Turns whose prompt was made."""
        self._prompt: Prompt = ""
        self._answer: Answered | None = None

    @property
    def next_turn(self) -> Turn | None:
        """The turn to send next; None: all were."""
        turns = self.session.turns
        return turns[self.num_sent] if self.num_sent < len(turns) else None

    def next_prompt(self) -> Prompt:
        """The whole prompt of the next turn, which is sent with it. Requires: there is one. O(prompt).

        Raises PrefixCacheClientError when a turn of token ids continues an answer that came as text only.
        """
        turn = self.next_turn
        assert turn is not None
        self._prompt = self._continued(turn.prompt) if turn.continues else turn.prompt
        self.num_sent += 1
        return self._prompt

    def answered(self, answer: Answered) -> None:
        """Note the answer to the last prompt."""
        self._answer = answer

    def _continued(self, prompt: Prompt) -> Prompt:
        if self._answer is None:
            return prompt  # nothing has been said yet
        if isinstance(prompt, str):
            assert isinstance(self._prompt, str)
            return self._prompt + self._answer.text + prompt
        if _is_chat(prompt) or _is_chat(self._prompt):
            said: Message = {"role": "assistant", "content": self._answer.text}
            return [*cast(Sequence[Message], self._prompt), said, *cast(Sequence[Message], prompt)]
        if self._answer.output_tokens and not self._answer.token_ids:
            raise PrefixCacheClientError(
                "this server answers with text only, which a conversation of token ids cannot continue:"
                " make the workload of text"
            )
        before = cast(Sequence[int], self._prompt)
        return [*before, *self._answer.token_ids, *cast(Sequence[int], prompt)]


def _is_chat(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and len(prompt) > 0 and not isinstance(prompt[0], int)
