"""`prefixcache prefix`: keeps prefixes warm."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from prefixcache_client.command_line import arguments as common
from prefixcache_client.command_line.output import count, printable, seconds, write_result
from prefixcache_client.command_line.text_input import read_text
from prefixcache_client.messages import Prompt
from prefixcache_client.prefix_answers import CreatedPrefix, Prefix

if TYPE_CHECKING:
    from prefixcache_client.command_line.arguments import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """`prefix create|list|show|update|delete`."""
    parser = subparsers.add_parser("prefix", help="keep the beginnings of prompts warm")
    actions: Subparsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_create(actions.add_parser("create", help="compute a prefix now and keep it"))
    show = actions.add_parser("show", help="show one prefix")
    _add_id(show)
    update = actions.add_parser("update", help="change how long a prefix is kept, or its name")
    _add_id(update)
    _add_ttl(update)
    update.add_argument("--label", type=common.text, help="a name for people")
    delete = actions.add_parser("delete", help="let go of a prefix")
    _add_id(delete)
    listing = actions.add_parser("list", help="show all prefixes of the tenant, the oldest first")
    for action, run in ((show, _show), (update, _update), (delete, _delete), (listing, _list)):
        common.add_connection(action)
        if action is not delete:
            common.add_json(action)
        action.set_defaults(run=run)


def prefix_table(prefixes: Sequence[Prefix]) -> Table:
    """One line for each prefix."""
    table = Table("id", "label", "tokens", "kept", "blocks", "uses", "ends in", box=None, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    for prefix in prefixes:
        table.add_row(
            prefix.prefix_id,
            printable(prefix.label) + (" (public)" if prefix.public else ""),
            f"{prefix.num_tokens:,}",
            f"{prefix.num_kept_tokens:,}",
            f"{prefix.num_blocks:,}",
            f"{prefix.num_uses:,}",
            seconds(prefix.seconds_left) if prefix.ttl_seconds else "never",
        )
    return table


def _add_create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "text",
        type=common.text,
        nargs="?",
        default="-",
        help="the beginning of prompts; '-' (default) reads standard input",
    )
    parser.add_argument(
        "--system", action="store_true", help="the text is the system message with which chats begin"
    )
    parser.add_argument("--public", action="store_true", help="let all tenants read it; needs a publisher")
    parser.add_argument("--salt", type=common.text, default="", help="the salt of the requests that use it")
    parser.add_argument("--label", type=common.text, default="", help="a name for people")
    _add_ttl(parser)
    common.add_connection(parser)
    common.add_json(parser)
    parser.set_defaults(run=_create)


def _add_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prefix_id", type=common.text, metavar="ID", help="the prefix")


def _add_ttl(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ttl", type=float, metavar="SECONDS", help="how long it is kept after its last use; 0: for ever"
    )


def _create(arguments: argparse.Namespace) -> int:
    text = read_text(sys.stdin.read) if arguments.text == "-" else arguments.text
    prompt: Prompt = [{"role": "system", "content": text}] if arguments.system else text
    with common.connect(arguments) as client:
        created = client.create_prefix(
            prompt,
            public=arguments.public,
            salt=arguments.salt,
            ttl_seconds=arguments.ttl,
            label=arguments.label,
        )
    write_result(created, arguments.json, _describe)
    return 0


def _describe(created: CreatedPrefix) -> str:
    prefix, usage = created.prefix, created.usage
    cost = "was there already" if usage is None else f"{count(usage.computed_tokens, 'token')} computed"
    return f"{prefix.prefix_id}: {count(prefix.num_kept_tokens, 'token')} kept, {cost}"


def _show(arguments: argparse.Namespace) -> int:
    with common.connect(arguments) as client:
        prefix = client.get_prefix(arguments.prefix_id)
    write_result(prefix, arguments.json, lambda shown: prefix_table([shown]))
    return 0


def _update(arguments: argparse.Namespace) -> int:
    with common.connect(arguments) as client:
        prefix = client.update_prefix(arguments.prefix_id, ttl_seconds=arguments.ttl, label=arguments.label)
    write_result(prefix, arguments.json, lambda shown: prefix_table([shown]))
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    with common.connect(arguments) as client:
        client.delete_prefix(arguments.prefix_id)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    with common.connect(arguments) as client:
        prefixes = list(client.list_prefixes())
    write_result(prefixes, arguments.json, prefix_table)
    return 0
