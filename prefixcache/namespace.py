"""Who a prompt belongs to, as bytes that no other owner's bytes can equal."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

_LENGTH_BYTES = 8
_SCOPE_BYTES = 16

PUBLIC_SCOPE = b""
"""Scope of nodes that everybody in the domain may read. No namespace's scope is empty."""


@dataclass(frozen=True)
class Namespace:
    """What separates one prompt's cached blocks from another's.

    Blocks never cross domains, since another model or adapter computes other values. Inside a
    domain, blocks cross scopes only where they were published as public.

    A server takes the tenant from the credential and gives its own `secret`; the `salt` may come
    from the client. Scopes are keyed hashes of both, so a salt can only make a scope narrower:
    whatever it is, it leads to no other tenant's blocks.
    """

    model: str
    """Name of the model build: change it whenever the weights change."""
    tenant: str
    salt: str = ""
    """Splits a tenant's prompts into groups that share nothing but public prefixes."""
    adapter: str = ""
    secret: bytes = field(default=b"", repr=False)
    """The deployment's. Another secret gives other scopes, so a snapshot needs the same one to hit."""
    is_publisher: bool = field(default=False, compare=False)
    """Whether prompts may be declared public, which lets everybody in the domain read them."""

    @cached_property
    def domain(self) -> bytes:
        """Which tree: the canonical encoding of model and adapter."""
        return encode_fields(self.model, self.adapter)

    @cached_property
    def scope(self) -> bytes:
        """Which private nodes: the keyed hash of tenant and salt, 16 bytes."""
        owner = encode_fields(self.tenant, self.salt)
        return keyed_digest(owner, secret=self.secret, num_bytes=_SCOPE_BYTES, purpose=b"scope")


def keyed_digest(message: bytes, *, secret: bytes, num_bytes: int, purpose: bytes) -> bytes:
    """BLAKE2b keyed with the secret (RFC 7693); a secret above its 64 bytes is hashed first."""
    key = secret if len(secret) <= blake2b.MAX_KEY_SIZE else blake2b(secret).digest()
    return blake2b(message, key=key, digest_size=num_bytes, person=purpose).digest()


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
