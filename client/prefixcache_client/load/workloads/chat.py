"""Conversations of many turns behind one system prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import ClassVar, Self

from prefixcache_client.load.session import Session, Turn
from prefixcache_client.load.workloads.amount import Amount
from prefixcache_client.load.workloads.flags import check_settings, describe, setting
from prefixcache_client.load.workloads.limits import Limits
from prefixcache_client.load.workloads.prompts import PromptForm, Prompts
from prefixcache_client.load.workloads.tenant_names import tenant_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Every prompt is the conversation so far and a user's next message: the shared part grows with each."""

    conversations: int | None = setting("how many (default: without end)", default=None, least=1)
    turns: Amount = setting("user messages of a conversation", default=Amount.fixed(4), least=1)
    system_tokens: int = setting("tokens that all conversations begin with", default=256)
    user_tokens: Amount = setting("tokens of a user's message", default=Amount.uniform(16, 64), least=1)
    output_tokens: Amount = setting("tokens of an answer", default=Amount.fixed(32), least=1)
    think_seconds: Amount = setting("from an answer to the user's next message", default=Amount.fixed(0))
    tenants: int = setting("tenants that the conversations belong to in turn", default=1, least=1)
    private: bool = setting("do not declare the system prompt public", default=False)
    prompt_form: PromptForm = setting("form of the prompts", default="tokens")
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    notes: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def description(self) -> dict[str, str | int | float]:
        return describe("chat", self)

    @property
    def num_sessions(self) -> int | None:
        return self.conversations

    def fitted_to(self, server: Mapping[str, str | int | float]) -> Self:
        """The same for a server that describes itself so. Raises PromptTooLongError."""
        limits = Limits.of(server)
        turns, output_tokens = self.turns.most_count, self.output_tokens.most_count
        prompt_tokens = (
            self.system_tokens + turns * (self.user_tokens.most_count + output_tokens) - output_tokens
        )
        limits.require_room(f"a conversation of {turns} turns", prompt_tokens, output_tokens)
        return replace(self, limits=limits)

    def warm_up(self) -> Iterator[Session]:
        """Nothing: the first conversation warms the system prompt for the others."""
        yield from ()

    def sessions(self) -> Iterator[Session]:
        prompts = Prompts(self.prompt_form, self.limits, self.seed)
        system = prompts.run("chat", 0, self.system_tokens) if self.system_tokens else []
        num_public_tokens = 0 if self.private else len(system)
        for index in count() if self.conversations is None else range(self.conversations):
            yield Session(
                turns=tuple(self._turns(prompts, system, index)),
                tenant=tenant_name(index % self.tenants, self.tenants),
                public_tokens=prompts.public_tokens(num_public_tokens),
                public_messages=prompts.public_messages(num_public_tokens),
            )

    def _turns(self, prompts: Prompts, system: list[int], conversation: int) -> Iterator[Turn]:
        rng = prompts.rng("settings", conversation)
        for number in range(self.turns.draw_count(rng)):
            name = f"turn-{number}"  # so that first messages differ in their first token
            message = prompts.run(name, conversation, self.user_tokens.draw_count(rng))
            yield Turn(
                prompt=prompts.more(message) if number else prompts.opening(system, message),
                max_tokens=self.output_tokens.draw_count(rng),
                continues=number > 0,
                think_seconds=self.think_seconds.draw(rng) if number else 0.0,
            )
