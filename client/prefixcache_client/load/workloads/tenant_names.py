"""What the tenants of a load are called."""

from __future__ import annotations


def tenant_name(index: int, num_tenants: int) -> str | None:
    """One that is alone is whoever the server takes the caller for."""
    return None if num_tenants == 1 else f"bench-{index}"
