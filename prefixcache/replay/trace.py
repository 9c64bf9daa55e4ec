"""Recorded requests, in three formats that are told apart by what is in the file.

Mooncake: one JSON object a line with `timestamp` (milliseconds), `hash_ids` (one for each block of
512 tokens) and `output_length`.

Coding-agent sessions: one JSON object a file with `block_size` and `requests`, each of those with `t`
(seconds), `model`, `hash_ids` and `out`. A request that has `requests` of its own is a subagent, whose
times count from its start. Ids mean something only within their file. A folder of such files is one
trace, in which all sessions start together.

Our own: one JSON object a line, such as

    {"t": 0.25, "tenant": "acme", "block_size": 16, "token_ids": [1, 2, 3], "output_length": 8}

- `t`: arrival in seconds since the start, never less than in the line before;
- `tenant`: who asks;
- `block_size`: tokens in a block, the same in every line;
- `token_ids`: the prompt; or else `hash_ids`: a number for each of its blocks, equal where the block
  and all before it are equal. The same one of the two in every line;
- `output_length`: tokens generated;
- optional, beside `token_ids`: `output_ids`, the tokens generated, which a later prompt may repeat;
- optional: `model` and `salt`, which separate prompts as they do in a cache, and `public_tokens`, the
  length of the beginning that other tenants may share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from prefixcache.namespace import Namespace
from prefixcache.replay.trace_fields import (
    ID_LIMIT,
    TraceError,
    TraceFields,
    fields_of_file,
    fields_of_lines,
    first_fields,
)
from prefixcache.token_chunks import PackedTokens, pack_tokens

MOONCAKE_BLOCK_SIZE = 512
DEFAULT_NAME = "default"
"""Tenant, and model, of requests that name none."""

_TOKEN_LIMIT = 1 << 32
_NO_IDS = PackedTokens(b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One recorded request. Whether its ids are tokens or whole blocks is up to the trace."""

    arrival_seconds: float
    """Since the start of the trace."""
    namespace: Namespace
    prompt_ids: PackedTokens
    """At least one."""
    num_public_ids: int = 0
    """Ids at the beginning of the prompt that other tenants may share."""
    output_ids: PackedTokens = _NO_IDS
    """Tokens generated; empty when the trace does not tell them."""
    num_output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A recorded trace. Every iteration reads its requests anew, in the order of arrival.

    Iterating raises TraceError where the trace is damaged, or OSError.
    """

    name: str
    block_size: int
    """Tokens in a block."""
    has_tokens: bool
    """Whether an id is a token. Otherwise it stands for a block and all that is before it."""
    num_requests: int
    read: Callable[[], Iterator[TraceRequest]]
    """Begins to read; what iterating does."""

    def __iter__(self) -> Iterator[TraceRequest]:
        return self.read()


def read_trace(path: str | Path) -> Trace:
    """The trace in a file, or in a folder of coding-agent sessions.

    Lines are read when the trace is iterated, one at a time; sessions are read now, since they
    have to be merged. Raises TraceError, or OSError.
    """
    path = Path(path)
    if path.is_dir():
        return _session_trace(path, sorted(path.glob("*.json")))
    first = first_fields(path)
    if "requests" in first:
        return _session_trace(path, [path])
    if "timestamp" in first and "hash_ids" in first:
        return _line_trace(path, _mooncake_requests, block_size=MOONCAKE_BLOCK_SIZE, has_tokens=False)
    if "t" in first and "block_size" in first:
        block_size, has_tokens = first.count("block_size", minimum=1), "token_ids" in first
        read = partial(_own_requests, block_size=block_size, has_tokens=has_tokens)
        return _line_trace(path, read, block_size=block_size, has_tokens=has_tokens)
    raise first.error(
        "no trace begins like this; give Mooncake's format, coding-agent sessions, "
        "or lines with 't', 'tenant', 'block_size', 'hash_ids' or 'token_ids', and 'output_length'"
    )


class _BlockNumbers:
    """Numbers block ids, which may be long hashes, so that they can stand for tokens."""

    def __init__(self) -> None:
        self._number_of_id: dict[int, int] = {}

    def pack(self, ids: list[int], *, file_index: int = 0) -> PackedTokens:
        """The numbers of some ids of one file; those of another file are others. O(ids)."""
        numbers, offset = self._number_of_id, file_index * ID_LIMIT
        return pack_tokens([numbers.setdefault(offset + an_id, len(numbers)) for an_id in ids])


_Reader = Callable[[Iterator[TraceFields]], Iterator[TraceRequest]]


def _line_trace(path: Path, read: _Reader, *, block_size: int, has_tokens: bool) -> Trace:
    with path.open("rb") as file:
        num_requests = sum(not line.isspace() for line in file)
    return Trace(
        name=path.name,
        block_size=block_size,
        has_tokens=has_tokens,
        num_requests=num_requests,
        read=lambda: read(fields_of_lines(path)),
    )


def _mooncake_requests(lines: Iterator[TraceFields]) -> Iterator[TraceRequest]:
    numbers = _BlockNumbers()
    namespace = Namespace(DEFAULT_NAME, DEFAULT_NAME)
    now = 0.0
    for fields in lines:
        now = _not_before(now, fields, "timestamp")
        yield TraceRequest(
            arrival_seconds=now / 1000,
            namespace=namespace,
            prompt_ids=numbers.pack(_prompt(fields, "hash_ids")),
            num_output_tokens=fields.count("output_length"),
        )


def _own_requests(
    lines: Iterator[TraceFields], *, block_size: int, has_tokens: bool
) -> Iterator[TraceRequest]:
    numbers = _BlockNumbers()
    namespace_of = cache(Namespace)  # one object for each, since it keeps its encoding
    now = 0.0
    for fields in lines:
        now = _not_before(now, fields, "t")
        if fields.count("block_size") != block_size:
            raise fields.error(f"'block_size' is not {block_size}, as it was in the first line")
        output_ids: list[int] = []
        if has_tokens:
            ids = _prompt(fields, "token_ids", limit=_TOKEN_LIMIT)
            prompt_ids, tokens_per_id = pack_tokens(ids), 1
            if "output_ids" in fields:
                output_ids = fields.ids("output_ids", limit=_TOKEN_LIMIT)
        else:
            ids = _prompt(fields, "hash_ids")
            prompt_ids, tokens_per_id = numbers.pack(ids), block_size
        num_public_tokens = fields.count("public_tokens", default=0)
        if num_public_tokens > len(ids) * tokens_per_id:
            raise fields.error(f"'public_tokens' is {num_public_tokens}, more than the prompt has")
        yield TraceRequest(
            arrival_seconds=now,
            namespace=namespace_of(
                fields.text("model", DEFAULT_NAME),
                fields.text("tenant"),
                fields.text("salt", ""),
                is_publisher=num_public_tokens > 0,
            ),
            prompt_ids=prompt_ids,
            num_public_ids=num_public_tokens // tokens_per_id,
            output_ids=pack_tokens(output_ids),
            num_output_tokens=len(output_ids) or fields.count("output_length"),
        )


def _session_trace(path: Path, files: list[Path]) -> Trace:
    sessions = [fields_of_file(file) for file in files]
    if not sessions:
        raise TraceError(f"{path} holds no .json file; give a folder of coding-agent sessions, or one file")
    block_size = sessions[0].count("block_size", minimum=1)
    numbers = _BlockNumbers()
    namespace_of = cache(Namespace)
    requests = []
    for file_index, session in enumerate(sessions):
        if session.count("block_size") != block_size:
            raise session.error(f"'block_size' is not {block_size}, as it is in {files[0].name}")
        if session.text("hash_id_scope", "local") != "local":
            raise session.error("'hash_id_scope' must be \"local\": ids that count in their file alone")
        for start, fields in _session_requests(session, start=0.0):
            requests.append(
                TraceRequest(
                    arrival_seconds=start + fields.seconds("t"),
                    namespace=namespace_of(fields.text("model", DEFAULT_NAME), DEFAULT_NAME),
                    prompt_ids=numbers.pack(_prompt(fields, "hash_ids"), file_index=file_index),
                    num_output_tokens=fields.count("out"),
                )
            )
    requests.sort(key=lambda request: request.arrival_seconds)
    return Trace(
        name=path.name,
        block_size=block_size,
        has_tokens=False,
        num_requests=len(requests),
        read=lambda: iter(requests),
    )


def _session_requests(group: TraceFields, *, start: float) -> Iterator[tuple[float, TraceFields]]:
    """The requests of a session or a subagent, each with the time that its `t` counts from."""
    for fields in group.objects("requests"):
        if "requests" in fields:
            yield from _session_requests(fields, start=start + fields.seconds("t"))
        else:
            yield start, fields


def _prompt(fields: TraceFields, name: str, *, limit: int = ID_LIMIT) -> list[int]:
    ids = fields.ids(name, limit=limit)
    if not ids:
        raise fields.error(f"{name!r} is empty; a prompt has at least one id")
    return ids


def _not_before(now: float, fields: TraceFields, name: str) -> float:
    """The time of a request that comes after all those up to `now`."""
    time = fields.seconds(name)
    if time < now:
        raise fields.error(f"{name!r} goes back from {now:g} to {time:g}; sort the lines by it")
    return time
