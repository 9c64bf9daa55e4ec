"""What both clients say to gRPC: where, limits, keepalive, and who calls."""

from __future__ import annotations

DEFAULT_ADDRESS = "127.0.0.1:50051"

MAX_REQUEST_BYTES = 16 * 1024 * 1024
MAX_RESPONSE_BYTES = 64 * 1024 * 1024

CHANNEL_OPTIONS = (
    # As the worker has them: what it refuses or never sends is refused here, before it goes over the network.
    ("grpc.max_send_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
    # The worker lets nobody ping more often than every 10 s.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Channels to one address would otherwise share a connection, and with it the limit on concurrent streams.
    ("grpc.use_local_subchannel_pool", 1),
)

AUTHORIZATION_KEY = "authorization"
TENANT_KEY = "x-tenant-id"


def checked_address(address: str) -> str:
    """The address itself. Raises ValueError unless it is HOST:PORT or [IPV6]:PORT."""
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    is_host = host.isprintable() and " " not in host and (":" not in host or bracketed)
    is_port = port.isascii() and port.isdigit() and 1 <= int(port) <= 65535
    if not (host and is_host and is_port):
        raise ValueError(f"address must be HOST:PORT with a port of 1 to 65535, got {address!r}")
    return address


def checked_tenant(tenant: str) -> str:
    """The tenant itself. Raises ValueError unless it is 1 to 128 printable ASCII characters."""
    if not (1 <= len(tenant) <= 128 and tenant.isascii() and tenant.isprintable()):
        raise ValueError(f"tenant must be 1 to 128 printable ASCII characters, got {tenant!r}")
    return tenant


def checked_api_key(api_key: str) -> str:
    """The key itself. Raises ValueError, without showing it, when no metadata can carry it."""
    if not (api_key.isascii() and api_key.isprintable() and api_key and " " not in api_key):
        raise ValueError("the API key must be printable ASCII characters without spaces")
    return api_key


def caller_metadata(*, tenant: str | None, api_key: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata that says who calls: nothing that was not given. Raises ValueError."""
    metadata: tuple[tuple[str, str], ...] = ()
    if api_key is not None:
        metadata += ((AUTHORIZATION_KEY, f"Bearer {checked_api_key(api_key)}"),)
    if tenant is not None:
        metadata += ((TENANT_KEY, checked_tenant(tenant)),)
    return metadata
