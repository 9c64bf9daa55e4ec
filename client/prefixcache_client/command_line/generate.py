"""`prefixcache generate`: answers one prompt."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from prefixcache_client.answers import Generation
from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.output import console, printable, usage_line, write_json, write_stream
from prefixcache_client.command_line.text_input import read_text
from prefixcache_client.messages import GenerateOptions, Prompt, chat_messages

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """`generate [PROMPT]`."""
    parser = subparsers.add_parser("generate", help="answer one prompt")
    parser.add_argument(
        "prompt",
        type=common.text,
        nargs="?",
        default="-",
        help="the text; '-' (default) reads standard input",
    )
    parser.add_argument(
        "--system",
        type=common.text,
        metavar="TEXT",
        help="answer the prompt as a chat turn under this system text",
    )
    parser.add_argument("--n", type=common.positive_int, default=1, help="how many answers (default: 1)")
    parser.add_argument(
        "--priority", type=int, help="higher ones go first, -100 to 100 (default: the worker's, which is 0)"
    )
    parser.add_argument("--ignore-eos", action="store_true", help="go on past the end-of-text token")
    parser.add_argument("--no-cache", action="store_true", help="compute everything and leave nothing behind")
    public = parser.add_mutually_exclusive_group()
    public.add_argument(
        "--public-tokens",
        type=common.non_negative_int,
        metavar="N",
        help="the first N tokens may be shared with every tenant",
    )
    public.add_argument(
        "--public-system", action="store_true", help="the system text may be shared with every tenant"
    )
    parser.add_argument("--prefix", type=common.text, metavar="ID", help="go on behind this kept prefix")
    parser.add_argument("--salt", type=common.text, help="share only with requests of the same salt")
    for flag, of_what in (("--logprobs", "each token"), ("--prompt-logprobs", "each token of the prompt")):
        parser.add_argument(
            flag,
            type=common.non_negative_int,
            metavar="N",
            help=f"with --json: the log-probability of {of_what} and of the N likeliest in its place",
        )
    common.add_sampling(parser)
    common.add_connection(parser)
    common.add_json(parser)
    parser.set_defaults(run=run, error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Stream the answer to standard output and what it cost to standard error."""
    if arguments.public_system and arguments.system is None:
        arguments.error("--public-system needs --system")
    if arguments.json is None and (arguments.logprobs, arguments.prompt_logprobs) != (None, None):
        arguments.error("--logprobs and --prompt-logprobs need --json, which writes them")
    text = read_text(sys.stdin.read) if arguments.prompt == "-" else arguments.prompt
    prompt: Prompt = text if arguments.system is None else chat_messages(text, system=arguments.system)
    options = _options(arguments)
    with common.connect(arguments) as client:
        if arguments.n == 1 and arguments.json != "-":
            generation = write_stream(client.stream(prompt, **options))
        else:
            generation = client.generate(prompt, **options)
            if arguments.json != "-":
                _write_choices(generation)
    if arguments.json is not None:
        write_json(generation, arguments.json)
    console(stderr=True).print(usage_line(generation), style="dim", soft_wrap=True)
    return 0


def _options(arguments: argparse.Namespace) -> GenerateOptions:
    options = common.sampling_options(arguments)
    options["n"] = arguments.n
    options["ignore_eos"] = arguments.ignore_eos
    options["logprobs"] = arguments.logprobs
    options["prompt_logprobs"] = arguments.prompt_logprobs
    if arguments.priority is not None:
        options["priority"] = arguments.priority
    options["use_cache"] = not arguments.no_cache
    if arguments.public_tokens is not None:
        options["public_tokens"] = arguments.public_tokens
    if arguments.public_system:
        options["public_messages"] = 1
    if arguments.salt is not None:
        options["salt"] = arguments.salt
    if arguments.prefix is not None:
        options["prefix"] = arguments.prefix
    return options


def _write_choices(generation: Generation) -> None:
    for choice in generation.choices:
        print(f"[{choice.index}] {printable(choice.text)}")
