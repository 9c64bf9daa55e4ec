"""`prefixcache chat`: a conversation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.output import console, usage_line, write_json, write_stream
from prefixcache_client.command_line.text_input import read_text
from prefixcache_client.messages import Message

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """`chat`."""
    parser = subparsers.add_parser(
        "chat", help="talk to the model; every line of standard input is one turn, an empty one is left out"
    )
    parser.add_argument("--system", type=common.text, metavar="TEXT", help="the system text")
    common.add_sampling(parser)
    common.add_connection(parser)
    common.add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Answer turn after turn until the input ends. Each turn finds the ones before it in the cache."""
    turns: list[Message] = []
    if arguments.system is not None:
        turns.append({"role": "system", "content": arguments.system})
    generations = []
    options = common.sampling_options(arguments)
    notes = console(stderr=True)
    with common.connect(arguments) as client:
        client.health()  # nobody should type a question only to learn that no worker answers
        for question in _questions():
            turns.append({"role": "user", "content": question})
            if arguments.json == "-":
                generation = client.generate(turns, **options)
            else:
                generation = write_stream(client.stream(turns, **options))
            turns.append({"role": "assistant", "content": generation.text})
            generations.append(generation)
            notes.print(usage_line(generation), style="dim", soft_wrap=True)
    if arguments.json is not None:
        write_json(generations, arguments.json)
    return 0


def _questions() -> Iterator[str]:
    """The lines of standard input that are not empty, asked for when somebody types them."""
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            line = read_text(lambda: input(prompt))
        except EOFError:
            return
        if line.strip():
            yield line.strip()
