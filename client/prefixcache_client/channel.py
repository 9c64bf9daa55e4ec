"""What both clients say to gRPC: limits, keepalive, the tenant."""

from __future__ import annotations

DEFAULT_ADDRESS = "127.0.0.1:50051"

MAX_MESSAGE_BYTES = 64 * 1024 * 1024

CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Channels to one address would otherwise share a connection, and with it the limit on concurrent streams.
    ("grpc.use_local_subchannel_pool", 1),
)

TENANT_KEY = "x-tenant-id"


def tenant_metadata(tenant: str) -> tuple[tuple[str, str], ...]:
    """The metadata that names the tenant.

    Raises ValueError unless the tenant is 1 to 128 printable ASCII characters.
    """
    if not (1 <= len(tenant) <= 128 and tenant.isascii() and tenant.isprintable()):
        raise ValueError(f"tenant must be 1 to 128 printable ASCII characters, got {tenant!r}")
    return ((TENANT_KEY, tenant),)
