"""Writes docs/api.md from the protos: `make protos` runs it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf import descriptor_pb2 as pb
from grpc_tools import protoc

PROTOS = Path(__file__).parent
PAGE = PROTOS.parent / "docs/api.md"

HEAD = """# The gRPC API

Made from the comments of `proto/prefixcache/v1/*.proto` by `make protos`: change those, not this page. Which
error a call can end with, and what to do then, is in
[operations.md](operations.md#errors-that-a-client-can-see).
"""

# Field numbers of descriptor.proto, which make up the paths of source locations.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_METHODS, _VALUES, _FIELDS, _NESTED_ENUMS = 2, 2, 2, 4

_TYPE_NAMES = {
    number: name.removeprefix("TYPE_").lower() for name, number in pb.FieldDescriptorProto.Type.items()
}


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(parse_protos()))


def parse_protos() -> list[pb.FileDescriptorProto]:
    """The project's own files, with their comments."""
    names = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "protos"
        status = protoc.main(
            ["protoc", f"-I{PROTOS}", f"--descriptor_set_out={output}", "--include_source_info", *names]
        )
        if status:
            sys.exit(status)
        files = pb.FileDescriptorSet.FromString(output.read_bytes()).file
    return sorted(files, key=lambda file: not file.name.endswith("inference.proto"))  # what people call first


def render(files: Sequence[pb.FileDescriptorProto]) -> str:
    """The page: all services, then all messages and enums."""
    services = [line for file in files for line in _services(file)]
    types = [line for file in files for line in _types(file)]
    return "\n".join([HEAD, *services, *types]).rstrip() + "\n"


def _services(file: pb.FileDescriptorProto) -> Iterator[str]:
    comments = _comments(file)
    for number, service in enumerate(file.service):
        path = (_SERVICES, number)
        yield f"## {service.name}\n"
        yield f"{comments[path]}\n"
        yield "| call | takes | answers | what it does |\n|---|---|---|---|"
        for index, method in enumerate(service.method):
            stream = "stream of " if method.server_streaming else ""
            yield (
                f"| `{method.name}` | {_link(method.input_type)} | {stream}{_link(method.output_type)} "
                f"| {_cell(comments[(*path, _METHODS, index)])} |"
            )
        yield ""


def _types(file: pb.FileDescriptorProto) -> Iterator[str]:
    comments = _comments(file)
    for number, message in enumerate(file.message_type):
        path = (_MESSAGES, number)
        yield f"### {message.name}\n"
        yield f"{comments[path]}\n"
        for index, enum in enumerate(message.enum_type):
            yield from _enum(
                enum, (*path, _NESTED_ENUMS, index), comments, title=f"{message.name}.{enum.name}"
            )
        if message.field:
            yield "| field | type | meaning |\n|---|---|---|"
            for index, field in enumerate(message.field):
                meaning = _cell(comments[(*path, _FIELDS, index)])
                yield f"| `{field.name}` | {_field_type(field, message)} | {meaning} |"
            yield ""
    for number, enum in enumerate(file.enum_type):
        yield from _enum(enum, (_ENUMS, number), comments, title=enum.name)


def _enum(
    enum: pb.EnumDescriptorProto, path: tuple[int, ...], comments: dict[tuple[int, ...], str], *, title: str
) -> Iterator[str]:
    yield f"### {title}\n"
    yield f"{comments[path]}\n"
    yield "| value | number | meaning |\n|---|---|---|"
    for index, value in enumerate(enum.value):
        yield f"| `{value.name}` | {value.number} | {_cell(comments[(*path, _VALUES, index)])} |"
    yield ""


def _field_type(field: pb.FieldDescriptorProto, message: pb.DescriptorProto) -> str:
    entry = next((nested for nested in message.nested_type if nested.name == _last(field.type_name)), None)
    if entry is not None and entry.options.map_entry:
        key, value = entry.field
        return f"map of {_TYPE_NAMES[key.type]} to {_TYPE_NAMES[value.type]}"
    name = _link(field.type_name) if field.type_name else _TYPE_NAMES[field.type]
    if field.label == pb.FieldDescriptorProto.LABEL_REPEATED:
        return f"list of {name}"
    if field.proto3_optional:
        return f"optional {name}"
    if field.HasField("oneof_index"):
        return f"{name}, one of `{message.oneof_decl[field.oneof_index].name}`"
    return name


def _link(type_name: str) -> str:
    """A link to the heading of a message or enum, which may be in a message."""
    name = type_name.removeprefix(".prefixcache.v1.")
    return f"[{name}](#{name.replace('.', '').lower()})"


def _last(type_name: str) -> str:
    return type_name.rpartition(".")[2]


def _cell(comment: str) -> str:
    return " ".join(comment.split()).replace("|", "\\|")


def _comments(file: pb.FileDescriptorProto) -> dict[tuple[int, ...], str]:
    """The comment before each thing, by its path."""
    return {
        tuple(location.path): "\n".join(
            line.removeprefix(" ") for line in location.leading_comments.rstrip("\n").split("\n")
        )
        for location in file.source_code_info.location
    }


if __name__ == "__main__":
    main()
