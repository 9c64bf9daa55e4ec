"""Messages as plain values, with numbers as numbers."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message


def plain(message: Message) -> dict[str, Any]:
    """The fields by name, those that are not set too: None if that can be told from zero, else zero.

    protobuf's own JSON has 64-bit numbers as texts, which a page would have to turn back. O(fields).
    """
    return {field.name: _plain_field(message, field) for field in message.DESCRIPTOR.fields}


def _plain_field(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        return [plain(item) if field.message_type is not None else item for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    if field.message_type is not None:
        return plain(value)
    return field.enum_type.values_by_number[value].name if field.enum_type is not None else value
