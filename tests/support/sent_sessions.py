"""What a workload's prompts come to when a server answers them one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import NamedTuple

from prefixcache_client.load.session import Session


class SentPrompt(NamedTuple):
    """One request of a workload of token ids, with an answer made up for it."""

    session: int
    turn: int
    tenant: str | None
    num_public_tokens: int
    prompt: list[int]
    written: list[int]
    """What it leaves in a cache: the prompt and its answer without the last token, which is never read."""


def sent_prompts(sessions: Iterable[Session], *, vocabulary_size: int = 1000) -> Iterator[SentPrompt]:
    """All requests, session by session; answers are random and as long as is asked for."""
    rng = Random("answers")
    for number, session in enumerate(sessions):
        said: list[int] = []
        for index, turn in enumerate(session.turns):
            prompt = [*said, *turn.prompt] if turn.continues else [*turn.prompt]  # type: ignore[list-item]
            said = prompt + rng.choices(range(vocabulary_size), k=turn.max_tokens)
            yield SentPrompt(number, index, session.tenant, session.public_tokens, prompt, said[:-1])


def num_cached_tokens(sent: Sequence[SentPrompt], *, block_size: int) -> list[int]:
    """How much of each prompt an endless cache has, by comparing it to all before.

    A tenant reads what it wrote itself, and of what others wrote the blocks that are public as a whole.
    """
    cached = []
    for index, request in enumerate(sent):
        longest = 0
        for before in sent[:index]:
            common = num_common(request.prompt, before.written)
            if before.tenant != request.tenant:
                common = min(common, before.num_public_tokens // block_size * block_size)
            longest = max(longest, common)
        cached.append(min(longest, len(request.prompt) - 1))
    return cached


def num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the longest common prefix."""
    common, most = 0, min(len(one), len(other))
    while common < most:
        middle = (common + most + 1) // 2
        if one[common:middle] == other[common:middle]:
            common = middle
        else:
            most = middle - 1
    return common
