"""What a server can take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prefixcache_client.errors import PrefixCacheClientError

_LEAST_VOCABULARY = 16
LONGEST_CONTEXT = 1 << 24
"""Tokens: longer prompts would take all memory before a server could refuse them."""


class PromptTooLongError(PrefixCacheClientError):
    """A workload has a prompt that cannot fit into the server's context."""

    def __init__(
        self, what: str, *, prompt_tokens: int, output_tokens: int, context_length: int, remedy: str
    ) -> None:
        super().__init__(
            f"{what} may be {prompt_tokens:,} tokens long and have {output_tokens:,} generated, "
            f"but the server's context is {context_length:,}: {remedy}"
        )
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.context_length = context_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What prompts are made for. The defaults are for a server that tells nothing."""

    vocabulary_size: int = 32_000
    context_length: int | None = None
    """Prompt and answer together; None: not known, and no longer than any model's that we know of."""
    block_size: int = 16

    @classmethod
    def of(cls, server: Mapping[str, str | int | float]) -> Limits:
        """Those that a target's `describe` names: "vocabulary_size", "context_length" and "block_size".

        Raises PrefixCacheClientError for a vocabulary of which no prompts can be made.
        """
        names = ("vocabulary_size", "context_length", "block_size")
        limits = cls(**{name: int(server[name]) for name in names if name in server})
        if limits.vocabulary_size < _LEAST_VOCABULARY:
            raise PrefixCacheClientError(
                f"the server has a vocabulary of {limits.vocabulary_size} tokens; to tell prompts apart, "
                f"at least {_LEAST_VOCABULARY} are needed"
            )
        return limits

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether both fit into the context, as far as that is known."""
        return prompt_tokens + output_tokens <= self.most_tokens

    def require_room(
        self, what: str, prompt_tokens: int, output_tokens: int, *, remedy: str = "make it shorter"
    ) -> None:
        """Raise PromptTooLongError unless both fit. `remedy` is what a user can do about it."""
        if not self.fits(prompt_tokens, output_tokens):
            raise PromptTooLongError(
                what,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                context_length=self.most_tokens,
                remedy=remedy,
            )

    @property
    def most_tokens(self) -> int:
        """Of prompt and answer together."""
        return LONGEST_CONTEXT if self.context_length is None else self.context_length
