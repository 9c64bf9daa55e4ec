"""What `prefixcache keys` becomes: add, list and revoke API keys.

Exit codes: 0 done, 1 the file cannot be used, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.server.access.api_keys import LABEL, is_label, make_key
from prefixcache_worker.server.access.caller import Role
from prefixcache_worker.server.access.key_file import KeyFile
from prefixcache_worker.server.access.tenant_names import TENANT_NAME, is_tenant_name

FILE_VARIABLE = "PREFIXCACHE_KEYS"
ROLES = tuple(role.name.lower() for role in Role)


def main(arguments: Sequence[str]) -> int:
    """Change or show the file."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if not parsed.file:
        parser.error(f"name the file of keys with --file or {FILE_VARIABLE}")
    try:
        parsed.run(KeyFile(Path(parsed.file)), parsed)
    except ConfigError as error:
        print(f"prefixcache keys: {error}", file=sys.stderr)
        return 1
    return 0


def _add(file: KeyFile, parsed: argparse.Namespace) -> None:
    created = datetime.now(UTC).isoformat(timespec="seconds")
    key, stored = make_key(
        tenant=parsed.tenant, role=Role[parsed.role.upper()], label=parsed.label, created=created
    )
    file.add(stored)
    print(key)
    print(
        f"This is the only time that the key is shown. It makes its owner {parsed.role} of tenant "
        f"{parsed.tenant}; its id is {stored.id}.",
        file=sys.stderr,
    )


def _list(file: KeyFile, _parsed: argparse.Namespace) -> None:
    rows = [("ID", "TENANT", "ROLE", "CREATED", "LABEL")]
    rows += [(key.id, key.tenant, key.role.name.lower(), key.created, key.label) for key in file.read()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _revoke(file: KeyFile, parsed: argparse.Namespace) -> None:
    key = file.revoke(parsed.id)
    print(f"{key.id} of tenant {key.tenant} is revoked; a running worker refuses it within a second.")


def _tenant(value: str) -> str:
    if not is_tenant_name(value):
        raise argparse.ArgumentTypeError(f"must be {TENANT_NAME}, got {value!r}")
    return value


def _label(value: str) -> str:
    if not is_label(value):
        raise argparse.ArgumentTypeError(f"must be {LABEL}, got {value!r}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prefixcache keys",
        description="API keys of a worker that is started with --keys. The file has hashes, never a key.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    add = commands.add_parser("add", help="make a key, and print it this once", allow_abbrev=False)
    add.add_argument("--tenant", type=_tenant, required=True, help="in whose name its calls are made")
    add.add_argument("--role", choices=ROLES, default="user", help="what it allows (default: %(default)s)")
    add.add_argument("--label", type=_label, default="", help="for people: who has it, what it is for")
    add.set_defaults(run=_add)
    show = commands.add_parser("list", help="show all keys but their secrets", allow_abbrev=False)
    show.set_defaults(run=_list)
    revoke = commands.add_parser("revoke", help="drop a key", allow_abbrev=False)
    revoke.add_argument("id", metavar="ID", help="as `list` shows it")
    revoke.set_defaults(run=_revoke)
    for command in (add, show, revoke):
        command.add_argument(
            "--file",
            default=os.environ.get(FILE_VARIABLE),
            help=f"the file of keys (default: {FILE_VARIABLE}, which the worker reads too)",
        )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
