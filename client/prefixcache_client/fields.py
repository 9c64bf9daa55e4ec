"""Messages and dataclasses with the same field names."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def from_fields(cls: type[T], message: Any, **values: Any) -> T:
    """An instance of the dataclass `cls` whose fields are named like the message's; `values` go first."""
    names = (field.name for field in fields(cls))  # type: ignore[arg-type]  # always a dataclass
    return cls(**{name: values[name] if name in values else getattr(message, name) for name in names})
