"""API keys as they are kept: everything about them but the keys themselves."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from prefixcache_worker.server.access.caller import Role
from prefixcache_worker.server.access.tenant_names import TENANT_NAME, is_tenant_name

MAX_LABEL_LENGTH = 256
LABEL = f"at most {MAX_LABEL_LENGTH} printable characters"
_KEY = re.compile(r"pc_([0-9a-f]{12})_([0-9a-f]{64})")
_ID = re.compile(r"[0-9a-f]{12}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NO_DIGEST = "0" * 64


def is_label(label: str) -> bool:
    """Whether it is what `LABEL` says."""
    return len(label) <= MAX_LABEL_LENGTH and label.isprintable()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """One key. Raises ValueError when a value is none of what its comment says."""

    id: str
    """The part of the key that may be shown: 12 hexadecimal digits."""
    tenant: str
    """A tenant's name: `TENANT_NAME`."""
    role: Role
    digest: str = field(repr=False)
    """SHA-256 of the secret part, in hexadecimal. Those are 256 random bits, with nothing to guess in them: a
    slow hash would only slow the calls down."""
    label: str
    """For people: `LABEL`."""
    created: str
    """When, in ISO 8601."""

    def __post_init__(self) -> None:
        if not (isinstance(self.id, str) and _ID.fullmatch(self.id)):
            raise ValueError("an id is not 12 hexadecimal digits")
        if not (isinstance(self.tenant, str) and is_tenant_name(self.tenant)):
            raise ValueError(f"the tenant of {self.id} is not {TENANT_NAME}")
        if not (isinstance(self.digest, str) and _DIGEST.fullmatch(self.digest)):
            raise ValueError(f"the secret_sha256 of {self.id} is not 64 hexadecimal digits")
        if not (isinstance(self.label, str) and is_label(self.label)):
            raise ValueError(f"the label of {self.id} is not {LABEL}")
        if not isinstance(self.created, str):
            raise ValueError(f"the time at which {self.id} was created is not a text")


def make_key(*, tenant: str, role: Role, label: str, created: str) -> tuple[str, StoredKey]:
    """A new random key, and what to keep of it. Raises ValueError as StoredKey does."""
    key_id, secret = secrets.token_hex(6), secrets.token_hex(32)
    stored = StoredKey(
        id=key_id, tenant=tenant, role=role, digest=_digest(secret), label=label, created=created
    )
    return f"pc_{key_id}_{secret}", stored


class KeyRing:
    """The keys that open the worker."""

    def __init__(self, keys: Iterable[StoredKey] = ()) -> None:
        """Raises ValueError when two have the same id."""
        self._key_by_id: dict[str, StoredKey] = {}
        for key in keys:
            if key.id in self._key_by_id:
                raise ValueError(f"two keys have the id {key.id}")
            self._key_by_id[key.id] = key

    def __iter__(self) -> Iterator[StoredKey]:
        return iter(self._key_by_id.values())

    def find(self, key: str) -> StoredKey | None:
        """What is kept of this key; None when it is none of ours.

        One that has a known id takes as long as one that has not: both are hashed and compared whole. O(1).
        """
        match = _KEY.fullmatch(key)
        if match is None:
            return None
        stored = self._key_by_id.get(match[1])
        expected = _NO_DIGEST if stored is None else stored.digest
        is_same = hmac.compare_digest(_digest(match[2]), expected)
        return stored if is_same else None


def keys_to_text(keys: Iterable[StoredKey]) -> str:
    """The text of a file with these keys."""
    rows = [
        {
            "id": key.id,
            "tenant": key.tenant,
            "role": key.role.name.lower(),
            "secret_sha256": key.digest,
            "label": key.label,
            "created": key.created,
        }
        for key in keys
    ]
    return json.dumps({"keys": rows}, indent=2) + "\n"


def keys_from_text(text: str) -> KeyRing:
    """The keys that such a text has. Raises ValueError, saying what is wrong and showing no digest."""
    try:
        table = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON: line {error.lineno}: {error.msg}") from None
    rows = table.get("keys") if isinstance(table, dict) else None
    if not isinstance(rows, list):
        raise ValueError('it is not a file of keys, which begins with {"keys": [')
    return KeyRing(_key_from_row(row) for row in rows)


def _key_from_row(row: Any) -> StoredKey:
    names = {"id", "tenant", "role", "secret_sha256", "label", "created"}
    if not isinstance(row, dict) or row.keys() != names:
        raise ValueError(f"each key has exactly {', '.join(sorted(names))}")
    role = row["role"]
    if role not in [known.name.lower() for known in Role]:
        raise ValueError(f"{role!r} is no role; there are user, publisher and admin")
    return StoredKey(
        id=row["id"],
        tenant=row["tenant"],
        role=Role[role.upper()],
        digest=row["secret_sha256"],
        label=row["label"],
        created=row["created"],
    )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
