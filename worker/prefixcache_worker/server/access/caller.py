"""Who makes a call, and what that allows."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from prefixcache import Namespace
from prefixcache_worker.errors import PermissionDeniedError
from prefixcache_worker.server.access.tenant_limits import TenantLimits


class Role(IntEnum):
    """What a credential allows; each role allows what those below it do."""

    USER = 1
    """Generate, keep private prefixes, and see what is the tenant's own or public."""
    PUBLISHER = 2
    """Let all tenants read a prefix."""
    ADMIN = 3
    """See all tenants' figures, and change the whole cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A tenant and the role of its credential. Made from a call's metadata alone, never from a body."""

    tenant: str
    role: Role
    limits: TenantLimits = field(default_factory=TenantLimits)
    """How much the tenant may ask for."""

    @property
    def is_admin(self) -> bool:
        return self.role >= Role.ADMIN

    def require(self, role: Role, to_do: str) -> None:
        """Raise PermissionDeniedError unless the caller has at least this role."""
        if self.role < role:
            raise PermissionDeniedError(
                f"{to_do} needs the role {role.name.lower()}; this credential has {self.role.name.lower()}"
            )

    def namespace(self, model_build: str, *, salt: str = "") -> Namespace:
        """Whose blocks the caller's prompts may read."""
        return Namespace(
            model=model_build, tenant=self.tenant, salt=salt, is_publisher=self.role >= Role.PUBLISHER
        )
