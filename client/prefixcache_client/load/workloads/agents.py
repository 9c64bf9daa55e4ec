"""Agents that hand parts of a task to sub-agents."""

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
class Agents:
    """A tree of three levels: one long prompt with the tools for all agents, a task for each of them, and
    behind it what each of its sub-agents is told, with the results of its tools.

    Sub-agents of one task are sent one after the other; by the workload's own times, at once.
    """

    agents: int | None = setting("how many (default: without end)", default=None, least=1)
    sub_agents: int = setting("sub-agents of each of them", default=4, least=1)
    system_tokens: int = setting("tokens of the prompt with the tools, for all", default=2048, least=1)
    task_tokens: Amount = setting("tokens of an agent's task", default=Amount.fixed(256), least=1)
    part_tokens: Amount = setting("tokens of a sub-agent's part of it", default=Amount.fixed(32), least=1)
    tool_turns: Amount = setting("calls of tools before its last answer", default=Amount.fixed(3))
    tool_tokens: Amount = setting("tokens of a tool's result", default=Amount.uniform(32, 128), least=1)
    tool_seconds: Amount = setting("how long a tool works", default=Amount.fixed(0))
    output_tokens: Amount = setting("tokens of an answer", default=Amount.fixed(32), least=1)
    apart_seconds: float = setting("from one agent's beginning to the next one's", default=1.0)
    tenants: int = setting("tenants that the agents belong to in turn", default=1, least=1)
    private: bool = setting("do not declare the prompt with the tools public", default=False)
    prompt_form: PromptForm = setting("form of the prompts", default="tokens")
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    notes: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def description(self) -> dict[str, str | int | float]:
        return describe("agents", self)

    @property
    def num_sessions(self) -> int | None:
        return None if self.agents is None else self.agents * self.sub_agents

    def fitted_to(self, server: Mapping[str, str | int | float]) -> Self:
        """The same for a server that describes itself so. Raises PromptTooLongError."""
        limits = Limits.of(server)
        output_tokens = self.output_tokens.most_count
        opening_tokens = self.system_tokens + self.task_tokens.most_count + self.part_tokens.most_count
        tool_tokens = round(self.tool_turns.most) * (output_tokens + self.tool_tokens.most_count)
        limits.require_room("a sub-agent's last prompt", opening_tokens + tool_tokens, output_tokens)
        return replace(self, limits=limits)

    def warm_up(self) -> Iterator[Session]:
        """Nothing: the first sub-agents warm the prompt for the others."""
        yield from ()

    def sessions(self) -> Iterator[Session]:
        prompts = Prompts(self.prompt_form, self.limits, self.seed)
        system = prompts.run("agents", 0, self.system_tokens)
        num_public_tokens = 0 if self.private else len(system)
        for agent in count() if self.agents is None else range(self.agents):
            task = prompts.run(
                "task", agent, self.task_tokens.draw_count(prompts.rng("task", agent, "length"))
            )
            for sub_agent in range(self.sub_agents):
                yield Session(
                    turns=tuple(self._turns(prompts, system, task, agent, sub_agent)),
                    tenant=tenant_name(agent % self.tenants, self.tenants),
                    seconds=agent * self.apart_seconds,
                    public_tokens=prompts.public_tokens(num_public_tokens),
                    public_messages=prompts.public_messages(num_public_tokens),
                )

    def _turns(
        self, prompts: Prompts, system: list[int], task: list[int], agent: int, sub_agent: int
    ) -> Iterator[Turn]:
        rng = prompts.rng("settings", agent, sub_agent)
        part = prompts.run(f"part-{agent}", sub_agent, self.part_tokens.draw_count(rng))
        yield Turn(prompt=prompts.opening(system, task + part), max_tokens=self.output_tokens.draw_count(rng))
        for number in range(round(self.tool_turns.draw(rng))):
            result = prompts.run(f"tool-{agent}-{number}", sub_agent, self.tool_tokens.draw_count(rng))
            yield Turn(
                prompt=prompts.more(result),
                max_tokens=self.output_tokens.draw_count(rng),
                continues=True,
                think_seconds=self.tool_seconds.draw(rng),
            )
