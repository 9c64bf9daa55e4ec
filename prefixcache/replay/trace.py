"""Recorded requests, in three formats that are told apart by what is in the file.

Mooncake: one JSON object a line with `timestamp` (milliseconds), `hash_ids` (one for each block of
512 tokens), `output_length`, and mostly `input_length`, the tokens of the prompt.

Coding-agent sessions: one JSON object a file with `block_size` and `requests`, each of those with `t`
(seconds), `model`, `hash_ids`, `out`, and mostly `in`, the tokens of the prompt. A request that has
`requests` of its own is a subagent, whose times count from its start. Ids mean something only within
their file. A folder of such files is one trace, in which all sessions start together.

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
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from prefixcache.namespace import Namespace
from prefixcache.replay.trace_fields import (
    ID_LIMIT,
    OnBroken,
    TraceError,
    TraceFields,
    fields_of_file,
    fields_of_lines,
    first_fields,
    leaving_out,
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
    num_prompt_tokens: int | None = None
    """Where ids are blocks: as recorded, which ends inside the last block, or behind it; None: not told."""
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
    """Of a file of lines: its lines, those that are broken too."""
    read: Callable[[], Iterator[TraceRequest]]
    """Begins to read; what iterating does."""

    def __iter__(self) -> Iterator[TraceRequest]:
        return self.read()


def read_trace(path: str | Path, *, on_broken: OnBroken | None = None) -> Trace:
    """The trace in a file, or in a folder of coding-agent sessions.

    Lines are read when the trace is iterated, one at a time; sessions are read now, since they
    have to be merged. Raises TraceError, or OSError.

    With `on_broken`, lines, sessions of a folder and requests of a session that are broken are left out
    instead, and each is told to it when it is read: lines at every iteration.
    """
    path = Path(path)
    if path.is_dir():
        return _session_trace(path, sorted(path.glob("*.json")), on_broken)
    first = _first_fields(path, is_lenient=on_broken is not None)
    if "requests" in first:
        return _session_trace(path, [path], on_broken)
    if _is_mooncake(first):
        return _line_trace(
            path, _MooncakeReader, block_size=MOONCAKE_BLOCK_SIZE, has_tokens=False, on_broken=on_broken
        )
    block_size, has_tokens = first.count("block_size", minimum=1), "token_ids" in first
    return _line_trace(
        path,
        lambda: _OwnReader(block_size, has_tokens=has_tokens),
        block_size=block_size,
        has_tokens=has_tokens,
        on_broken=on_broken,
    )


def _first_fields(path: Path, *, is_lenient: bool) -> TraceFields:
    """The first object that a trace can begin with. Only a lenient reading looks behind the first line."""
    if is_lenient:
        found = next(filter(_is_good_beginning, fields_of_lines(path, lambda _: None)), None)
        if found is not None:
            return found
    first = first_fields(path)
    if not ("requests" in first or _is_mooncake(first) or ("t" in first and "block_size" in first)):
        raise first.error(
            "no trace begins like this; give Mooncake's format, coding-agent sessions, "
            "or lines with 't', 'tenant', 'block_size', 'hash_ids' or 'token_ids', and 'output_length'"
        )
    return first


def _is_good_beginning(fields: TraceFields) -> bool:
    with suppress(TraceError):
        return "requests" in fields or _is_mooncake(fields) or fields.count("block_size", minimum=1) > 0
    return False


def _is_mooncake(fields: TraceFields) -> bool:
    return "timestamp" in fields and "hash_ids" in fields


class _BlockNumbers:
    """Numbers block ids, which may be long hashes, so that they can stand for tokens."""

    def __init__(self) -> None:
        self._number_of_id: dict[int, int] = {}

    def pack(self, ids: list[int], *, file_index: int = 0) -> PackedTokens:
        """The numbers of some ids of one file; those of another file are others. O(ids)."""
        numbers, offset = self._number_of_id, file_index * ID_LIMIT
        return pack_tokens([numbers.setdefault(offset + an_id, len(numbers)) for an_id in ids])


class _Reader(Protocol):
    """Makes requests of the lines of one file, in their order."""

    def request(self, fields: TraceFields) -> TraceRequest:
        """Raises TraceError; then it is as if the line were not there."""
        ...


def _line_trace(
    path: Path,
    reader: Callable[[], _Reader],
    *,
    block_size: int,
    has_tokens: bool,
    on_broken: OnBroken | None,
) -> Trace:
    with path.open("rb") as file:
        num_requests = sum(not line.isspace() for line in file)
    return Trace(
        name=path.name,
        block_size=block_size,
        has_tokens=has_tokens,
        num_requests=num_requests,
        read=lambda: _line_requests(path, reader(), on_broken),
    )


def _line_requests(path: Path, reader: _Reader, on_broken: OnBroken | None) -> Iterator[TraceRequest]:
    for fields in fields_of_lines(path, on_broken):
        with leaving_out(on_broken):
            yield reader.request(fields)


class _MooncakeReader:
    """Mooncake's lines."""

    def __init__(self) -> None:
        self._numbers = _BlockNumbers()
        self._namespace = Namespace(DEFAULT_NAME, DEFAULT_NAME)
        self._now = 0.0

    def request(self, fields: TraceFields) -> TraceRequest:
        now = _not_before(self._now, fields, "timestamp")
        request = TraceRequest(
            arrival_seconds=now / 1000,
            namespace=self._namespace,
            prompt_ids=self._numbers.pack(_prompt(fields, "hash_ids")),
            num_prompt_tokens=_num_prompt_tokens(fields, "input_length"),
            num_output_tokens=fields.count("output_length"),
        )
        self._now = now
        return request


class _OwnReader:
    """Lines of our own format."""

    def __init__(self, block_size: int, *, has_tokens: bool) -> None:
        self._block_size = block_size
        self._has_tokens = has_tokens
        self._numbers = _BlockNumbers()
        self._namespace_of = cache(Namespace)  # one object for each, since it keeps its encoding
        self._now = 0.0

    def request(self, fields: TraceFields) -> TraceRequest:
        now = _not_before(self._now, fields, "t")
        if fields.count("block_size") != self._block_size:
            raise fields.error(f"'block_size' is not {self._block_size}, as it was in the first line")
        output_ids: list[int] = []
        if self._has_tokens:
            ids = _prompt(fields, "token_ids", limit=_TOKEN_LIMIT)
            prompt_ids, tokens_per_id = pack_tokens(ids), 1
            if "output_ids" in fields:
                output_ids = fields.ids("output_ids", limit=_TOKEN_LIMIT)
        else:
            ids = _prompt(fields, "hash_ids")
            prompt_ids, tokens_per_id = self._numbers.pack(ids), self._block_size
        num_public_tokens = fields.count("public_tokens", default=0)
        if num_public_tokens > len(ids) * tokens_per_id:
            raise fields.error(f"'public_tokens' is {num_public_tokens}, more than the prompt has")
        request = TraceRequest(
            arrival_seconds=now,
            namespace=self._namespace_of(
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
        self._now = now
        return request


def _session_trace(path: Path, files: list[Path], on_broken: OnBroken | None) -> Trace:
    if not files:
        raise TraceError(f"{path} holds no .json file; give a folder of coding-agent sessions, or one file")
    block_size: int | None = None
    numbers = _BlockNumbers()
    namespace_of = cache(Namespace)
    requests = []
    for file_index, file in enumerate(files):
        with leaving_out(on_broken):
            session = fields_of_file(file)
            if block_size is None:
                block_size, first_name = session.count("block_size", minimum=1), file.name
            if session.count("block_size") != block_size:
                raise session.error(f"'block_size' is not {block_size}, as it is in {first_name}")
            if session.text("hash_id_scope", "local") != "local":
                raise session.error("'hash_id_scope' must be \"local\": ids that count in their file alone")
            for start, fields in _session_requests(session, start=0.0, on_broken=on_broken):
                with leaving_out(on_broken):
                    requests.append(
                        TraceRequest(
                            arrival_seconds=start + fields.seconds("t"),
                            namespace=namespace_of(fields.text("model", DEFAULT_NAME), DEFAULT_NAME),
                            prompt_ids=numbers.pack(_prompt(fields, "hash_ids"), file_index=file_index),
                            num_prompt_tokens=_num_prompt_tokens(fields, "in"),
                            num_output_tokens=fields.count("out"),
                        )
                    )
    if block_size is None:
        raise TraceError(f"{path}: none of its {len(files)} sessions can be read")
    requests.sort(key=lambda request: request.arrival_seconds)
    return Trace(
        name=path.name,
        block_size=block_size,
        has_tokens=False,
        num_requests=len(requests),
        read=lambda: iter(requests),
    )


def _session_requests(
    group: TraceFields, *, start: float, on_broken: OnBroken | None
) -> Iterator[tuple[float, TraceFields]]:
    """The requests of a session or a subagent, each with the time that its `t` counts from."""
    for fields in group.objects("requests", on_broken):
        if "requests" in fields:
            with leaving_out(on_broken):
                start_of_subagent = start + fields.seconds("t")
                yield from _session_requests(fields, start=start_of_subagent, on_broken=on_broken)
        else:
            yield start, fields


def _prompt(fields: TraceFields, name: str, *, limit: int = ID_LIMIT) -> list[int]:
    ids = fields.ids(name, limit=limit)
    if not ids:
        raise fields.error(f"{name!r} is empty; a prompt has at least one id")
    return ids


def _num_prompt_tokens(fields: TraceFields, name: str) -> int | None:
    return fields.count(name, minimum=1) if name in fields else None


def _not_before(now: float, fields: TraceFields, name: str) -> float:
    """The time of a request that comes after all those up to `now`."""
    time = fields.seconds(name)
    if time < now:
        raise fields.error(f"{name!r} goes back from {now:g} to {time:g}; sort the lines by it")
    return time
