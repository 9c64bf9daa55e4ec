"""Arguments that several subcommands have in common."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefixcache_client.channel import DEFAULT_ADDRESS, checked_address, checked_api_key, checked_tenant
from prefixcache_client.client import Client
from prefixcache_client.command_line.text_input import checked_text
from prefixcache_client.errors import PrefixCacheClientError
from prefixcache_client.messages import GenerateOptions
from prefixcache_client.tls import Tls

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction["Parser"]

_ADDRESS_VARIABLE = "PREFIXCACHE_ADDRESS"
_API_KEY_VARIABLE = "PREFIXCACHE_API_KEY"
_MOST_SECONDS = 1e9  # to gRPC, a deadline centuries away has passed already


class Parser(argparse.ArgumentParser):
    """Takes flags by their whole name only, and so do its subparsers."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)


def add_connection(parser: argparse.ArgumentParser) -> None:
    """`--address`, `--tls...`, `--api-key`, `--tenant` and `--deadline`."""
    add_address(parser)
    add_tls(parser)
    add_api_key(parser)
    parser.add_argument(
        "--tenant",
        type=tenant,
        metavar="NAME",
        help="in whose name, if the worker trusts its callers so far (--trust-tenant-header)",
    )
    add_deadline(parser)


def connect(arguments: argparse.Namespace) -> Client:
    """A client of the worker and in the name that `add_connection` read."""
    return Client(
        arguments.address,
        api_key=arguments.api_key,
        tenant=arguments.tenant,
        tls=tls(arguments),
        deadline=arguments.deadline,
    )


def add_address(parser: argparse.ArgumentParser) -> None:
    """`--address`."""
    parser.add_argument(
        "--address",
        type=address,
        default=os.environ.get(_ADDRESS_VARIABLE, DEFAULT_ADDRESS),
        metavar="HOST:PORT",
        help=f"where the worker listens (default: {_ADDRESS_VARIABLE}, else {DEFAULT_ADDRESS})",
    )


def add_tls(parser: argparse.ArgumentParser) -> None:
    """`--tls`, and the files it may need."""
    group = parser.add_argument_group("encryption")
    group.add_argument("--tls", action="store_true", help="encrypt; implied by the options below")
    group.add_argument("--tls-ca", metavar="FILE", help="PEM file with who signed the worker's certificate")
    group.add_argument("--tls-certificate", metavar="FILE", help="PEM file with the client's own certificate")
    group.add_argument("--tls-key", metavar="FILE", help="PEM file with its key")


def tls(arguments: argparse.Namespace) -> Tls | None:
    """What `add_tls` read. Raises PrefixCacheClientError when a certificate comes without its key."""
    files = (arguments.tls_ca, arguments.tls_certificate, arguments.tls_key)
    if not arguments.tls and files == (None, None, None):
        return None
    try:
        return Tls(ca=arguments.tls_ca, certificate=arguments.tls_certificate, key=arguments.tls_key)
    except ValueError:
        raise PrefixCacheClientError("give --tls-certificate and --tls-key together, or neither") from None


def add_api_key(parser: argparse.ArgumentParser) -> None:
    """`--api-key`."""
    parser.add_argument(
        "--api-key",
        type=api_key,
        default=os.environ.get(_API_KEY_VARIABLE) or None,
        metavar="KEY",
        help=f"better set {_API_KEY_VARIABLE}: a machine's users can read a running command's arguments",
    )


def add_deadline(parser: argparse.ArgumentParser) -> None:
    """`--deadline`."""
    parser.add_argument("--deadline", type=deadline, metavar="SECONDS", help="give up a call after this time")


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen and when an answer ends."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=positive_int, default=256, help="default: %(default)s")
    group.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    group.add_argument("--top-p", type=float)
    group.add_argument("--top-k", type=top_k, help="0 keeps all")
    group.add_argument("--min-p", type=float)
    group.add_argument("--repetition-penalty", type=float, help="above 1 makes repetitions less likely")
    group.add_argument("--presence-penalty", type=float)
    group.add_argument("--frequency-penalty", type=float)
    group.add_argument(
        "--logit-bias",
        type=logit_bias,
        action="append",
        metavar="ID=BIAS",
        help="add this to a token's logit; may be repeated",
    )
    group.add_argument("--seed", type=seed, help="makes the answer repeatable")
    group.add_argument(
        "--stop", type=text, action="append", default=[], help="end before this text; may be repeated"
    )
    group.add_argument(
        "--stop-token-id",
        type=non_negative_int,
        action="append",
        dest="stop_token_ids",
        metavar="ID",
        help="end with this token; may be repeated",
    )
    group.add_argument(
        "--include-stop", action="store_true", default=None, help="let the answer end with what stopped it"
    )
    group.add_argument("--min-tokens", type=non_negative_int)
    rule = group.add_mutually_exclusive_group()
    rule.add_argument(
        "--json-schema",
        type=json_schema,
        metavar="FILE|TEXT",
        help="answer with JSON that this schema holds for: a file, or the schema itself",
    )
    rule.add_argument("--regex", type=text, help="answer with a text that this expression matches")
    rule.add_argument(
        "--grammar",
        type=text_file,
        metavar="FILE",
        help="answer with a text of this grammar, in Lark's notation",
    )


def sampling_options(arguments: argparse.Namespace) -> GenerateOptions:
    """What `add_sampling` read."""
    # An option that is None counts as left out.
    return {
        "max_tokens": arguments.max_tokens,
        "min_tokens": arguments.min_tokens,
        "temperature": arguments.temperature,
        "top_p": arguments.top_p,
        "top_k": arguments.top_k,
        "min_p": arguments.min_p,
        "repetition_penalty": arguments.repetition_penalty,
        "presence_penalty": arguments.presence_penalty,
        "frequency_penalty": arguments.frequency_penalty,
        "logit_bias": dict(arguments.logit_bias or ()),
        "seed": arguments.seed,
        "stop": arguments.stop,
        "stop_token_ids": arguments.stop_token_ids,
        "include_stop": arguments.include_stop,
        "json_schema": arguments.json_schema,
        "regex": arguments.regex,
        "grammar": arguments.grammar,
    }


def add_json(parser: argparse._ActionsContainer) -> None:
    """`--json`."""
    parser.add_argument(
        "--json",
        type=json_path,
        metavar="FILE",
        help="write the figures as JSON to this file; '-' writes them to standard output instead of the text",
    )


def add_force(parser: argparse._ActionsContainer) -> None:
    """`--force`, for `require_new_files`."""
    parser.add_argument("--force", action="store_true", help="replace files that exist")


def require_new_files(arguments: argparse.Namespace, *paths: str | None) -> None:
    """Raise PrefixCacheClientError for a report file that exists, unless `add_force` read that it may go.

    Ends the program when two reports would be one file. Requires: the parser's `error` among the arguments.
    """
    files = [path for path in paths if path not in (None, "-")]
    for path, number in Counter(map(os.path.realpath, files)).items():
        if number > 1:
            arguments.error(f"{path} would be written twice: name a file for each report")
    for path in files:
        if os.path.exists(path) and not arguments.force:
            raise PrefixCacheClientError(f"{path} exists: name another file, or replace it with --force")


def text(value: str) -> str:
    """A text that a message can hold."""
    try:
        return checked_text(value)
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"must be UTF-8 text, got {value!r}") from None


def json_schema(value: str) -> str:
    """A JSON Schema: the text itself, if it begins like one, or that of a file."""
    return text(value) if value.lstrip()[:1] == "{" else text_file(value)


def text_file(value: str) -> str:
    """The text of a file."""
    try:
        return Path(value).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"cannot read {value!r}: {error}") from None


def address(value: str) -> str:
    """Where a worker listens."""
    try:
        return checked_address(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def tenant(value: str) -> str:
    """A tenant's name."""
    try:
        return checked_tenant(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def api_key(value: str) -> str:
    """An API key; what is wrong with it is said without showing it."""
    try:
        return checked_api_key(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def json_path(value: str) -> str:
    """A file that can be made, checked before any work is done for it."""
    folder = os.path.dirname(value) or os.curdir
    if value != "-" and not os.path.isdir(folder):
        raise argparse.ArgumentTypeError(f"{folder} is no directory")
    if os.path.isdir(value):
        raise argparse.ArgumentTypeError(f"{value} is a directory: name a file in it")
    return value


def file_path(value: str) -> str:
    """A file that can be made, and not standard output."""
    if value == "-":
        raise argparse.ArgumentTypeError("name a file; only --json writes to standard output")
    return json_path(value)


def positive_int(value: str) -> int:
    """An integer of at least 1 that a uint32 holds."""
    return _integer(value, minimum=1)


def non_negative_int(value: str) -> int:
    """An integer of at least 0 that a uint32 holds."""
    return _integer(value, minimum=0)


def top_k(value: str) -> int:
    """An integer of at least 0 that an int32 holds."""
    return _integer(value, minimum=0, maximum=2**31 - 1)


def seed(value: str) -> int:
    """An integer of at least 0 that a uint64 holds."""
    return _integer(value, minimum=0, maximum=2**64 - 1)


def sequence_number(value: str) -> int:
    """An integer of at least 0 that a uint64 holds."""
    return _integer(value, minimum=0, maximum=2**64 - 1)


def logit_bias(value: str) -> tuple[int, float]:
    """A token id, "=" and a number."""
    token_id, _, bias = value.partition("=")
    try:
        return non_negative_int(token_id), float(bias)
    except (argparse.ArgumentTypeError, ValueError):
        raise argparse.ArgumentTypeError(f"must be ID=BIAS, such as 42=-1.5, got {value!r}") from None


def deadline(value: str) -> float:
    """Seconds, more than 0."""
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < _MOST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"must be a number of seconds above 0 and below {_MOST_SECONDS:g}, got {value!r}"
        )
    return number


def _integer(value: str, *, minimum: int, maximum: int = 2**32 - 1) -> int:
    if not (value.isascii() and value.isdigit()) or not minimum <= int(value) <= maximum:
        raise argparse.ArgumentTypeError(f"must be an integer from {minimum} to {maximum}, got {value!r}")
    return int(value)
