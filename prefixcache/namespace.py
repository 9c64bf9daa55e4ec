"""Who a prompt belongs to, as bytes that no other owner's bytes can equal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

_LENGTH_BYTES = 8

PUBLIC_SCOPE = b""
"""Scope of nodes that everybody in the domain may read. No namespace's scope is empty."""


@dataclass(frozen=True)
class Namespace:
    """What separates one prompt's cached blocks from another's.

    Blocks never cross domains, since another model or adapter computes other values. Inside a
    domain, blocks cross scopes only where they were published as public.
    """

    model: str
    """Name of the model build: change it whenever the weights change."""
    tenant: str
    salt: str = ""
    """Splits a tenant's prompts into groups that share nothing but public prefixes."""
    adapter: str = ""

    @cached_property
    def domain(self) -> bytes:
        """Which tree: the canonical encoding of model and adapter."""
        return encode_fields(self.model, self.adapter)

    @cached_property
    def scope(self) -> bytes:
        """Which private nodes: the canonical encoding of tenant and salt."""
        return encode_fields(self.tenant, self.salt)


def encode_fields(*fields: str) -> bytes:
    """Each field behind its length, so that different fields never give the same bytes."""
    encoded = [field.encode("utf-8", "surrogatepass") for field in fields]
    return b"".join(len(field).to_bytes(_LENGTH_BYTES, "little") + field for field in encoded)


def decode_fields(encoded: bytes) -> list[str]:
    """The fields behind `encode_fields`."""
    fields, offset = [], 0
    while offset < len(encoded):
        start = offset + _LENGTH_BYTES
        offset = start + int.from_bytes(encoded[offset:start], "little")
        fields.append(encoded[start:offset].decode("utf-8", "surrogatepass"))
    return fields
