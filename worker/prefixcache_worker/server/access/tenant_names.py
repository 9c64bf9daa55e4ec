"""What a tenant may be called."""

from __future__ import annotations

DEFAULT_TENANT = "default"
"""Who calls a worker that asks nobody who they are."""
MAX_TENANT_LENGTH = 128
TENANT_NAME = f"1 to {MAX_TENANT_LENGTH} printable ASCII characters"


def is_tenant_name(name: str) -> bool:
    """Whether it is what `TENANT_NAME` says: what metadata and headers can carry."""
    return 1 <= len(name) <= MAX_TENANT_LENGTH and name.isascii() and name.isprintable()
