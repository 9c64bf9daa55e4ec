"""Tenants of very different sizes, each with a system prompt of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import ClassVar, Self

from prefixcache_client.load.session import Session, Turn
from prefixcache_client.load.workloads.amount import Amount
from prefixcache_client.load.workloads.flags import check_settings, describe, setting
from prefixcache_client.load.workloads.limits import Limits
from prefixcache_client.load.workloads.prompts import PromptForm, Prompts
from prefixcache_client.load.workloads.tenant_names import tenant_name
from prefixcache_client.load.workloads.tenant_rates import TenantRates

_NUM_TENANTS = 43


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenants:
    """Requests in the order in which real tenants would send them, `mean_rate` a second by their own times.

    Windows of a recording keep their proportions; inside of one, requests are independent of each other
    (Poisson). Without a recording there is no end, and rates never change; they have the skew of a real one.
    """

    recording: Path | None = setting(
        "folder with each tenant's rate in each window, in ServeGen's form (default: a built-in skew)",
        default=None,
    )
    tenants: int | None = setting(
        f"only those who ask most (default: all of the recording, or {_NUM_TENANTS})",
        default=None,
        least=1,
        most=1e6,
    )
    first_window: int = setting("where in the recording to begin", default=0)
    num_windows: int | None = setting("windows to repeat (default: all that follow)", default=None, least=1)
    window_seconds: float = setting("how long a window becomes", default=600.0, least=1e-3)
    mean_rate: float = setting(
        "requests a second, on average of all windows", default=4.0, least=1e-6, most=1e5
    )
    prefix_tokens: Amount = setting("tokens of a tenant's system prompt", default=Amount.fixed(512), least=1)
    suffix_tokens: Amount = setting("tokens behind it", default=Amount.fixed(64), least=1)
    output_tokens: Amount = setting("tokens to generate", default=Amount.fixed(32), least=1)
    prompt_form: PromptForm = setting("form of the prompts", default="tokens")
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    notes: ClassVar[tuple[str, ...]] = ()
    num_sessions: int | None = None
    """With a recording, known once the workload is fitted."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def description(self) -> dict[str, str | int | float]:
        return describe("tenants", self)

    def fitted_to(self, server: Mapping[str, str | int | float]) -> Self:
        """The same for a server that describes itself so. Raises PromptTooLongError, and like `sessions`."""
        limits = Limits.of(server)
        prompt_tokens = self.prefix_tokens.most_count + self.suffix_tokens.most_count
        limits.require_room("a prompt", prompt_tokens, self.output_tokens.most_count)
        num_windows = len(self.rates().windows)
        num_sessions = round(num_windows * self.window_seconds * self.mean_rate)
        return replace(self, limits=limits, num_sessions=None if self.recording is None else num_sessions)

    def warm_up(self) -> Iterator[Session]:
        """Nothing: that those who ask seldom are cold is what this is about."""
        yield from ()

    def sessions(self) -> Iterator[Session]:
        """Keeps the tenants' system prompts, and the moments of a window.

        Raises PrefixCacheClientError, or OSError, for a recording that has not the form.
        """
        rates = self.rates()
        prompts = Prompts(self.prompt_form, self.limits, self.seed)
        prefix_of = cache(lambda tenant: self._prefix(prompts, tenant))
        for number, (seconds, tenant) in enumerate(self._arrivals(prompts, rates)):
            rng = prompts.rng("settings", number)
            suffix = prompts.run(f"suffix-{tenant}", number, self.suffix_tokens.draw_count(rng))
            turn = Turn(
                prompt=prompts.opening(prefix_of(tenant), suffix),
                max_tokens=self.output_tokens.draw_count(rng),
            )
            yield Session(
                turns=(turn,),
                tenant=tenant_name(tenant, rates.num_tenants),
                seconds=seconds,
            )

    def rates(self) -> TenantRates:
        """Those that the requests go by. Raises as `sessions` does."""
        if self.recording is None:
            return TenantRates.skewed(self.tenants or _NUM_TENANTS)
        return TenantRates.read(self.recording, self.tenants).part(self.first_window, self.num_windows)

    def _arrivals(self, prompts: Prompts, rates: TenantRates) -> Iterator[tuple[float, int]]:
        """When each request is due, and whose it is."""
        windows = rates.windows if self.recording is not None else repeat(rates.windows[0])
        mean_rate = sum(map(sum, rates.windows)) / len(rates.windows)
        num_until, num_sent = 0.0, 0
        for index, window in enumerate(windows):
            rng = prompts.rng("window", index)
            num_until += self.window_seconds * self.mean_rate * sum(window) / mean_rate
            num_requests = round(num_until) - num_sent  # windows of less than one request add up too
            num_sent += num_requests
            if num_requests:
                moments = sorted((index + rng.random()) * self.window_seconds for _ in range(num_requests))
                tenants = rng.choices(range(rates.num_tenants), weights=window, k=num_requests)
                yield from zip(moments, tenants, strict=True)

    def _prefix(self, prompts: Prompts, tenant: int) -> list[int]:
        num_tokens = self.prefix_tokens.draw_count(prompts.rng("tenant", tenant, "length"))
        return prompts.run("tenant", tenant, num_tokens)
