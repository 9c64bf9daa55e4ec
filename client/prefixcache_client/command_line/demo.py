"""`prefixcache demo`: four tenants, one long system prompt, one copy of its KV."""

from __future__ import annotations

import argparse
import asyncio
import statistics
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from prefixcache_client.answers import Delta, Event, Generation, generation_from_events
from prefixcache_client.async_client import AsyncClient
from prefixcache_client.cache_answers import Stats, Tree
from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.answer_board import AnswerBoard
from prefixcache_client.command_line.demo_policy import PUBLIC_MESSAGES, TENANTS, Tenant, conversation
from prefixcache_client.command_line.figures import Figure, figures_table, share_of_unshared
from prefixcache_client.command_line.output import console, seconds, share, write_json
from prefixcache_client.command_line.own_worker import own_worker
from prefixcache_client.command_line.tree import draw_tree

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """Everything the worker said during the demo."""

    cold: Generation
    later: list[Generation]
    before: Stats
    after: Stats
    tree: Tree
    """As it was when the last of the later requests had its first token."""


def add_parser(subparsers: Subparsers) -> None:
    """`demo`."""
    parser = subparsers.add_parser(
        "demo",
        help="four tenants share one system prompt on a real model",
        description="Starts a worker of its own, sends sixteen requests of four tenants that begin with the"
        " same long system prompt, and shows what sharing saved.",
    )
    parser.add_argument(
        "--address",
        type=common.address,
        metavar="HOST:PORT",
        help="use this running worker instead: one without keys, started with --trust-tenant-header",
    )
    parser.add_argument(
        "--max-tokens", type=common.positive_int, default=40, help="tokens per answer (default: %(default)s)"
    )
    parser.add_argument(
        "worker_arguments",
        nargs="*",
        metavar="-- WORKER ARGUMENTS",
        help="for the worker that the demo starts",
    )
    common.add_deadline(parser)
    common.add_json(parser)
    parser.set_defaults(run=run, error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; its worker is gone when this returns or raises."""
    if arguments.address is not None and arguments.worker_arguments:
        arguments.error("worker arguments are for the worker that the demo starts: leave out --address")
    screen = console(stderr=arguments.json == "-")
    with ExitStack() as stack:
        address = arguments.address
        if address is None:
            if not arguments.worker_arguments:
                screen.print("The default model is tiny: its answers are fluent, not true.\n", style="dim")
            with _spinner(screen, "starting the worker"):
                address = stack.enter_context(
                    own_worker("--trust-tenant-header", *arguments.worker_arguments)
                )
        outcome = asyncio.run(
            _serve_visitors(address, screen, max_tokens=arguments.max_tokens, deadline=arguments.deadline)
        )
    figures = _figures(outcome)
    screen.print(figures_table(figures, title=f"{len(TENANTS)} tenants, one shared system prompt"))
    screen.print("The radix tree while all of them were being answered:", style="bold")
    screen.print(draw_tree(outcome.tree))
    if arguments.json is not None:
        write_json(figures, arguments.json)
    return 0


@dataclass(frozen=True, slots=True)
class _Visit:
    """One visitor's question to the agent of a tenant."""

    client: AsyncClient
    tenant: Tenant
    question: str
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the first piece of the answer is here."""

    async def answer(self, board: AnswerBoard, max_tokens: int) -> Generation:
        """Ask, and show the answer on the board as it arrives."""
        board.start(self.tenant.name, self.question)
        events: list[Event] = []
        async for event in self.client.stream(
            conversation(self.tenant, self.question),
            max_tokens=max_tokens,
            temperature=0.0,
            public_messages=PUBLIC_MESSAGES,
        ):
            self.begun.set()
            events.append(event)
            if isinstance(event, Delta):
                board.add(self.tenant.name, self.question, event.text)
        generation = generation_from_events(events)
        usage = generation.usage
        remark = (
            f"{usage.cached_tokens:,} of {usage.prompt_tokens:,} prompt tokens cached,"
            f" first token after {seconds(generation.timing.first_token_seconds)} with queue"
        )
        board.finish(self.tenant.name, self.question, remark)
        return generation


async def _serve_visitors(
    address: str, screen: Console, *, max_tokens: int, deadline: float | None
) -> _Outcome:
    """One request alone on a cold cache, then all the others at once."""
    async with AsyncExitStack() as stack:
        visits = []
        for tenant in TENANTS:
            client = AsyncClient(address, tenant=tenant.name, deadline=deadline)
            await stack.enter_async_context(client)
            visits += [_Visit(client, tenant, question) for question in tenant.questions]
        first, *others = visits

        async def tree_at_the_busiest() -> Tree:
            for visit in others:
                await visit.begun.wait()
            return await first.client.tree()

        before = await first.client.stats(reset_peaks=True)
        with AnswerBoard(screen) as board:
            cold = await first.answer(board, max_tokens)
            try:
                async with asyncio.TaskGroup() as group:
                    later = [group.create_task(visit.answer(board, max_tokens)) for visit in others]
                    tree = group.create_task(tree_at_the_busiest())
            except ExceptionGroup as failures:  # the first failure cancelled the rest and tells enough
                raise failures.exceptions[0] from None
        return _Outcome(
            cold=cold,
            later=[task.result() for task in later],
            before=before,
            after=await first.client.stats(),
            tree=tree.result(),
        )


def _figures(outcome: _Outcome) -> list[Figure]:
    """The table, made of the worker's own answers."""
    answers = [outcome.cold, *outcome.later]
    prompt = sum(answer.usage.prompt_tokens for answer in answers)
    cached = sum(answer.usage.cached_tokens for answer in answers)
    computed = sum(answer.usage.computed_tokens for answer in answers)
    generated = sum(answer.usage.completion_tokens for answer in outcome.later)
    last_seconds = max(answer.timing.total_seconds for answer in outcome.later)  # they arrived together
    cold = _model_seconds(outcome.cold)
    later = [_model_seconds(answer) for answer in outcome.later]
    waited = [answer.timing.first_token_seconds for answer in outcome.later]
    blocks = outcome.after.blocks
    rows_read = outcome.after.tokens.kv_rows_read - outcome.before.tokens.kv_rows_read
    rows_unshared = outcome.after.tokens.kv_rows_unshared - outcome.before.tokens.kv_rows_unshared
    peak_bytes = blocks.peak_live * blocks.block_bytes
    peak_bytes_unshared = blocks.peak_live_unshared * blocks.block_bytes
    copied = blocks.copied - outcome.before.blocks.copied
    return [
        Figure("requests", len(answers), "", note=f"1 alone, then {len(outcome.later)} at once"),
        Figure("prompt tokens", prompt, "tokens"),
        Figure("prompt tokens cached", cached, "tokens", note=share(cached, prompt)),
        Figure("prompt tokens computed", computed, "tokens", note=share(computed, prompt)),
        Figure(
            "first token, first request",
            cold,
            "s",
            note=f"without queue, {outcome.cold.usage.cached_tokens:,} tokens cached",
        ),
        Figure(
            "first token, later requests",
            statistics.median(later),
            "s",
            (min(later), max(later)),
            note="without queue",
        ),
        Figure(
            "first token, later requests, with queue",
            statistics.median(waited),
            "s",
            (min(waited), max(waited)),
        ),
        Figure("output", generated / last_seconds, "tokens/s", note="all later requests together"),
        Figure(
            "KV in use at the peak",
            peak_bytes,
            "bytes",
            note=share_of_unshared(peak_bytes, peak_bytes_unshared),
        ),
        Figure("KV at the peak without sharing", peak_bytes_unshared, "bytes"),
        Figure("KV rows read", rows_read, "rows", note=share_of_unshared(rows_read, rows_unshared)),
        Figure("KV rows without sharing", rows_unshared, "rows"),
        Figure("blocks copied on write", copied, "blocks"),
    ]


def _model_seconds(answer: Generation) -> float:
    """From leaving the queue to the first token."""
    return answer.timing.first_token_seconds - answer.timing.queue_seconds


def _spinner(screen: Console, text: str) -> Progress:
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
    progress.add_task(text, total=None)
    return progress
