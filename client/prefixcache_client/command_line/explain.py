"""`prefixcache explain`: how much of a prompt is cached, and why not more."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.output import printable, share, write_result
from prefixcache_client.command_line.text_input import NotTextError, read_text
from prefixcache_client.explanation import Explanation
from prefixcache_client.messages import Prompt, chat_messages
from prefixcache_client.read_json import read_json

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """`explain [PROMPT]`."""
    parser = subparsers.add_parser("explain", help="tell how much of a prompt is cached, and why not more")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "prompt",
        type=common.text,
        nargs="?",
        default="-",
        help="the text; '-' (default) reads standard input",
    )
    source.add_argument("--file", type=Path, metavar="FILE", help="read the text from this file")
    source.add_argument(
        "--chat", type=Path, metavar="FILE", help='read a conversation: a JSON list of {"role", "content"}'
    )
    parser.add_argument(
        "--system", type=common.text, metavar="TEXT", help="the text is a chat turn under this system text"
    )
    public = parser.add_mutually_exclusive_group()
    public.add_argument(
        "--public-tokens",
        type=common.non_negative_int,
        metavar="N",
        help="as if the first N tokens were declared public",
    )
    public.add_argument(
        "--public-system", action="store_true", help="as if the system text were declared public"
    )
    parser.add_argument("--salt", type=common.text, default="", help="as a request of this salt")
    common.add_connection(parser)
    common.add_json(parser)
    parser.set_defaults(run=run, error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation."""
    if arguments.public_system and arguments.system is None:
        arguments.error("--public-system needs --system")
    if arguments.system is not None and arguments.chat is not None:
        arguments.error("--system belongs to a text; with --chat, put it into the conversation")
    prompt = _prompt(arguments)
    with common.connect(arguments) as client:
        explanation = client.explain(
            prompt,
            public_tokens=arguments.public_tokens,
            public_messages=1 if arguments.public_system else None,
            salt=arguments.salt,
        )
    write_result(explanation, arguments.json, explanation_table)
    return 0


def explanation_table(explanation: Explanation) -> Table:
    """How far, why, and what to do."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    num_cached, num_prompt = explanation.num_cached_tokens, explanation.num_prompt_tokens
    table.add_row("cached", f"{num_cached:,} of {num_prompt:,} tokens, {share(num_cached, num_prompt)}")
    table.add_row("cause", explanation.cause.replace("_", " "))
    if explanation.held_by_tenant:
        table.add_row("held by", printable(explanation.held_by_tenant))
    if explanation.divergence is not None:
        table.add_row("prompt", _quoted(explanation.divergence.prompt_preview))
        if explanation.divergence.cached_token is not None:
            table.add_row("cache has", _quoted(explanation.divergence.cached_preview))
    table.add_row("", printable(explanation.summary))
    return table


def _prompt(arguments: argparse.Namespace) -> Prompt:
    if arguments.chat is not None:
        return chat_messages(_conversation(arguments.chat))
    if arguments.file is not None:
        text = read_text(lambda: arguments.file.read_text(encoding="utf-8"))
    else:
        text = read_text(sys.stdin.read) if arguments.prompt == "-" else arguments.prompt
    return text if arguments.system is None else chat_messages(text, system=arguments.system)


def _conversation(path: Path) -> list[dict[str, str]]:
    try:
        turns = read_json(path.read_bytes())
        if not isinstance(turns, list):
            raise ValueError("no list")
        chat_messages(turns)
    except ValueError as error:
        raise NotTextError(f'{path} is no JSON list of {{"role", "content"}}: {error}') from None
    return turns


def _quoted(text: str) -> str:
    return f"…{printable(' '.join(text.split()))}…"
