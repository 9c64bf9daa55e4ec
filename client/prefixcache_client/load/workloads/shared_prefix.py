"""Groups of users, each with a system prompt in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from random import Random
from typing import ClassVar, Self

from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.load.session import Session, Turn
from prefixcache_client.load.workloads.amount import Amount
from prefixcache_client.load.workloads.flags import check_settings, describe, setting
from prefixcache_client.load.workloads.limits import Limits
from prefixcache_client.load.workloads.prompts import PromptForm, Prompts
from prefixcache_client.load.workloads.tenant_names import tenant_name


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Users of system prompts. The groups take turns.

    Before a user's suffix comes the whole prompt of the group, or, for a share of the users, its beginning up
    to a token inside a block, and then tokens of the user's own up to the same length.
    """

    groups: int = setting("system prompts", default=1, least=1)
    users: int | None = setting("users of each of them (default: without end)", default=None, least=1)
    common_tokens: int = setting("tokens that all groups begin with", default=0)
    prefix_tokens: Amount = setting("tokens of a group's own prompt", default=Amount.fixed(1024), least=1)
    suffix_tokens: Amount = setting("tokens of a user's own", default=Amount.fixed(32), least=1)
    output_tokens: Amount = setting("tokens to generate", default=Amount.fixed(32), least=1)
    diverging: float = setting("share of users who leave the prefix inside a block, 0 to 1", default=0.0)
    tenants: int = setting("tenants that the users of a group belong to in turn", default=1, least=1)
    private: bool = setting(
        "share prefixes within a tenant only, instead of declaring them public", default=False
    )
    cold: bool = setting("do not send the prefixes once before", default=False)
    prompt_form: PromptForm = setting("form of the prompts", default="tokens")
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    notes: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_settings(self)
        if self.diverging > 1:
            raise ValueError(f"diverging is a share from 0 to 1, got {self.diverging}")

    @property
    def description(self) -> dict[str, str | int | float]:
        return describe("shared-prefix", self)

    @property
    def num_sessions(self) -> int | None:
        return None if self.users is None else self.groups * self.users

    def fitted_to(self, server: Mapping[str, str | int | float]) -> Self:
        """The same for a server that describes itself so.

        Raises PromptTooLongError, or PrefixCacheClientError when nobody can diverge inside a block.
        """
        limits = Limits.of(server)
        prompt_tokens = self.common_tokens + self.prefix_tokens.most_count + self.suffix_tokens.most_count
        limits.require_room("a prompt", prompt_tokens, self.output_tokens.most_count)
        if self.diverging and (limits.block_size == 1 or self.prefix_tokens.least < 2):
            raise PrefixCacheClientError(
                f"no user can leave a prefix of {self.prefix_tokens} tokens inside a block of "
                f"{limits.block_size}: set diverging to 0"
            )
        return replace(self, limits=limits)

    def warm_up(self) -> Iterator[Session]:
        """Every prefix once, for each tenant that does not see those of others."""
        if self.cold:
            return
        prompts = self._prompts()
        for group in range(self.groups):
            shared = self._prefix(prompts, group)
            own = prompts.run(f"user-{group}", -1, 1)  # unlike that of any user
            turns = (Turn(prompt=prompts.opening(shared, own), max_tokens=1),)
            for tenant in range(self.tenants if self.private else 1):
                yield self._session(prompts, turns, tenant, num_shared_tokens=len(shared))

    def sessions(self) -> Iterator[Session]:
        """Keeps the prefixes of all groups."""
        prompts = self._prompts()
        prefix_of = cache(lambda group: self._prefix(prompts, group))
        for index in count() if self.num_sessions is None else range(self.num_sessions):
            user, group = divmod(index, self.groups)
            prefix = prefix_of(group)
            rng = prompts.rng("settings", group, user)
            num_suffix_tokens = self.suffix_tokens.draw_count(rng)
            max_tokens = self.output_tokens.draw_count(rng)
            num_shared_tokens = self._num_shared_tokens(rng, len(prefix))
            after = prefix[num_shared_tokens : num_shared_tokens + 1]
            num_own_tokens = len(prefix) - num_shared_tokens + num_suffix_tokens
            own = prompts.run(f"user-{group}", user, num_own_tokens, unlike=after)
            whole = prefix[:num_shared_tokens] + own
            turn = Turn(
                prompt=prompts.opening(whole[: len(prefix)], whole[len(prefix) :]), max_tokens=max_tokens
            )
            yield self._session(prompts, (turn,), user % self.tenants, num_shared_tokens=num_shared_tokens)

    def _prompts(self) -> Prompts:
        return Prompts(self.prompt_form, self.limits, self.seed)

    def _prefix(self, prompts: Prompts, group: int) -> list[int]:
        common = prompts.run("common", 0, self.common_tokens) if self.common_tokens else []
        num_own_tokens = self.prefix_tokens.draw_count(prompts.rng("prefix", group))
        return common + prompts.run("group", group, num_own_tokens)

    def _num_shared_tokens(self, rng: Random, num_prefix_tokens: int) -> int:
        """How far a user follows the prefix: to its end, or into a block behind the common part."""
        if rng.random() >= self.diverging:
            return num_prefix_tokens
        inside = [
            position
            for position in range(self.common_tokens + 1, num_prefix_tokens)
            if position % self.limits.block_size
        ]
        return rng.choice(inside) if inside else num_prefix_tokens

    def _session(
        self, prompts: Prompts, turns: tuple[Turn, ...], tenant: int, *, num_shared_tokens: int
    ) -> Session:
        num_public_tokens = 0 if self.private else num_shared_tokens
        return Session(
            turns=turns,
            tenant=tenant_name(tenant, self.tenants),
            public_tokens=prompts.public_tokens(num_public_tokens),
            public_messages=prompts.public_messages(num_public_tokens),
        )
