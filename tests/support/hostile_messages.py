"""Requests as nobody should send them."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

_Type = FieldDescriptor
_SIGNED = {_Type.TYPE_INT32: 32, _Type.TYPE_INT64: 64}
_UNSIGNED = {_Type.TYPE_UINT32: 32, _Type.TYPE_UINT64: 64}
_UNKNOWN_FIELDS = b"\xc2\x3e\x03abc\xc8\x3e\xff\xff\xff\xff\x0f"  # numbers 1000 and 1001
_WELL_FORMED_TEXTS = ("user", "system", '{"type": "object"}', "[a-z]+", "start: /a+/", "once upon a time")


def messages(descriptor: Descriptor) -> st.SearchStrategy[Message]:
    """Messages of a type with any of their fields set: to what is usual, to the bounds, and beyond them."""
    return st.fixed_dictionaries(
        {}, optional={field.name: _values(field) for field in descriptor.fields}
    ).map(lambda values: GetMessageClass(descriptor)(**values))


@st.composite
def wire_bytes(draw: st.DrawFn, descriptor: Descriptor) -> bytes:
    """A message as it is sent; now and then with unknown fields, cut off, damaged, or no message at all."""
    data = bytes(draw(messages(descriptor)).SerializeToString())
    match draw(st.sampled_from(["whole"] * 6 + ["unknown fields", "cut off", "damaged", "noise"])):
        case "unknown fields":
            return data + _UNKNOWN_FIELDS
        case "cut off":
            return data[: draw(st.integers(0, len(data)))]
        case "damaged" if data:
            position = draw(st.integers(0, len(data) - 1))
            return data[:position] + draw(st.binary(min_size=1, max_size=4)) + data[position + 1 :]
        case "noise":
            return draw(st.binary(max_size=200))
    return data


def _values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return st.dictionaries(_single(key), _single(value), max_size=3)
    if field.is_repeated:
        few = st.lists(_single(field), max_size=4)
        many = st.builds(lambda value, count: [value] * count, _single(field), st.sampled_from([20, 40, 400]))
        return few | many
    return _single(field)


def _single(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type == _Type.TYPE_MESSAGE:
        return messages(field.message_type)
    if field.type == _Type.TYPE_ENUM:
        return st.sampled_from([*(value.number for value in field.enum_type.values), 99, -1])
    if field.type == _Type.TYPE_BOOL:
        return st.booleans()
    if field.type == _Type.TYPE_STRING:
        hostile = st.sampled_from(["", "\0", "\ufffd\U0001f600", "x" * 70_000, "</s>", "../../etc/passwd"])
        return st.sampled_from(_WELL_FORMED_TEXTS) | hostile | st.text(max_size=20)
    if field.type == _Type.TYPE_BYTES:
        return st.binary(max_size=40)
    if field.type in (_Type.TYPE_FLOAT, _Type.TYPE_DOUBLE):
        width = 32 if field.type == _Type.TYPE_FLOAT else 64
        return st.sampled_from([0.0, 0.5, 1.0, 2.0]) | st.floats(width=width)
    if bits := _UNSIGNED.get(field.type):
        return st.integers(0, 30) | st.sampled_from([255, 2 ** (bits - 1), 2**bits - 1])
    bits = _SIGNED[field.type]
    return st.integers(-2, 30) | st.sampled_from([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1])
