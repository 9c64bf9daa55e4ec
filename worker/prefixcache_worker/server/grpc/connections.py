"""What the server says to gRPC about connections: sizes, keepalive, age."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache_worker.config import WorkerConfig

MAX_REQUEST_BYTES = 16 * 1024 * 1024
"""Of one message from a client: 4 million token ids, or the text of a very long prompt."""
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Of one message to a client. Those of Generate stay far below: they come in parts."""
MAX_METADATA_BYTES = 8 * 1024
MAX_CALLS_PER_CONNECTION = 1024
"""Calls at once on one connection; the client's gRPC lets others wait for those to end."""
MIN_PING_SECONDS = 10
"""A client that pings more often, without calls or with them, loses its connection: ENHANCE_YOUR_CALM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionAge:
    """When clients are told to connect anew, so that they find new workers behind one name."""

    max_seconds: float
    """gRPC adds or takes up to a tenth, so that not all come at once."""
    grace_seconds: float
    """Calls that still run so long after that lose their connection."""


def connection_age(config: WorkerConfig) -> ConnectionAge | None:
    """What the settings say."""
    if config.max_connection_age is None:
        return None
    return ConnectionAge(max_seconds=config.max_connection_age, grace_seconds=config.connection_age_grace)


def server_options(age: ConnectionAge | None = None) -> list[tuple[str, int]]:
    """gRPC's options. Without `age` connections live as long as their clients like."""
    options = [
        ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
        ("grpc.max_send_message_length", MAX_RESPONSE_BYTES),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
        ("grpc.so_reuseport", 0),  # a busy port is an error, not a share of its traffic
        # Find dead peers behind silent networks: ping after 30 s without traffic, give up 10 s later.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1000 * MIN_PING_SECONDS),
    ]
    if age is not None:
        options += [
            ("grpc.max_connection_age_ms", round(1000 * age.max_seconds)),
            ("grpc.max_connection_age_grace_ms", round(1000 * age.grace_seconds)),
        ]
    return options
