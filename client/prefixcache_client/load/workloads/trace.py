"""Recorded requests, sent again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Self

from prefixcache import unpack_tokens
from prefixcache.replay import DEFAULT_NAME, LeftOut, TraceError, TraceRequest, read_trace
from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.load.session import Session, Turn
from prefixcache_client.load.workloads.flags import check_settings, describe, setting
from prefixcache_client.load.workloads.limits import LONGEST_CONTEXT, Limits
from prefixcache_client.load.workloads.prompts import PromptForm, Prompts
from prefixcache_client.load.workloads.recorded_prompts import RecordedPrompts

_REMEDY = "clip what is too long (--clip), or scale all lengths down (--length-scale)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTrace:
    """The requests of a trace that `prefixcache replay` reads, at their times and in their lengths.

    Times count from the first request, as a part of a recording need not begin at 0.
    `length_scale` makes blocks longer or shorter, and answers with them: what share of a prompt other prompts
    share stays as it was.
    """

    trace: Path = setting("file or folder, as for `prefixcache replay`")
    time_scale: float = setting("times become so many times as long: 0.1 is ten times as fast", default=1.0)
    length_scale: float = setting("prompts and answers become so many times as long", default=1.0, least=1e-6)
    limit: int | None = setting("stop after so many requests", default=None, least=1)
    clip: bool = setting(
        "cut off what is longer than the server's context, instead of refusing it", default=False
    )
    strict: bool = setting(
        "end at the first line or request that is broken, instead of naming it and going on", default=False
    )
    prompt_form: PromptForm = setting("form of the prompts", default="tokens")
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    notes: tuple[str, ...] = ()
    """What was left out or cut off, known once the workload is fitted."""
    num_sessions: int | None = None
    """Requests that are not broken, known once the workload is fitted."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def description(self) -> dict[str, str | int | float]:
        return describe("trace", self)

    def fitted_to(self, server: Mapping[str, str | int | float]) -> Self:
        """The same for a server that describes itself so. Reads the whole trace.

        Raises PromptTooLongError for a prompt that does not fit when none may be clipped, TraceError for a
        trace that is broken as a whole, or anywhere when it is read strictly, PrefixCacheClientError for
        tokens that the server does not have, or OSError.
        """
        limits = Limits.of(server)
        left_out = LeftOut()
        trace = read_trace(self.trace, on_broken=None if self.strict else left_out)
        if trace.has_tokens and (self.length_scale != 1 or self.prompt_form != "tokens"):
            raise PrefixCacheClientError(
                f"{self.trace} has the tokens themselves, which are sent as they are: "
                "they are not scaled in length, and are no text"
            )
        recorded = RecordedPrompts(trace, Prompts(self.prompt_form, limits, self.seed), self.length_scale)
        num_requests = num_clipped = 0
        for request in islice(trace, self.limit):
            num_requests += 1
            what = f"prompt {num_requests} of {trace.name}"
            num_prompt_tokens = recorded.num_tokens(request)
            num_output_tokens = self._num_output_tokens(request)
            if self.clip and num_prompt_tokens <= LONGEST_CONTEXT:  # else it could not even be made
                num_clipped += not limits.fits(num_prompt_tokens, num_output_tokens)
            else:
                limits.require_room(what, num_prompt_tokens, num_output_tokens, remedy=_REMEDY)
            if trace.has_tokens and max(unpack_tokens(request.prompt_ids)) >= limits.vocabulary_size:
                raise PrefixCacheClientError(
                    f"{what} has tokens that the server has not: its last is {limits.vocabulary_size - 1:,}"
                )
        if not num_requests:
            raise TraceError(f"{self.trace} has no request that is not broken")
        notes = left_out.sentences()
        if num_clipped:
            notes.append(f"clipped to the context: {num_clipped:,} of {num_requests:,} prompts")
        return replace(self, limits=limits, notes=tuple(notes), num_sessions=num_requests)

    def warm_up(self) -> Iterator[Session]:
        """Nothing: a recording begins with an empty cache."""
        yield from ()

    def sessions(self) -> Iterator[Session]:
        """Raises TraceError for a broken trace, or OSError."""
        trace = read_trace(self.trace, on_broken=None if self.strict else LeftOut())
        prompts = Prompts(self.prompt_form, self.limits, self.seed)
        recorded = RecordedPrompts(trace, prompts, self.length_scale)
        first_seconds: float | None = None
        for request in islice(trace, self.limit):
            if first_seconds is None:
                first_seconds = request.arrival_seconds
            tokens, num_output_tokens = recorded.tokens(request), self._num_output_tokens(request)
            if not self.limits.fits(len(tokens), num_output_tokens):
                num_output_tokens = min(num_output_tokens, self.limits.most_tokens // 2)
                tokens = tokens[: self.limits.most_tokens - num_output_tokens]
            tenant = request.namespace.tenant
            yield Session(
                turns=(Turn(prompt=prompts.opening((), tokens), max_tokens=num_output_tokens),),
                tenant=None if tenant == DEFAULT_NAME else tenant,
                seconds=(request.arrival_seconds - first_seconds) * self.time_scale,
                public_tokens=prompts.public_tokens(min(recorded.num_public_tokens(request), len(tokens))),
            )

    def _num_output_tokens(self, request: TraceRequest) -> int:
        return max(1, round(request.num_output_tokens * self.length_scale))
