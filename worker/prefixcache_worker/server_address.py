"""Where a door listens."""

from __future__ import annotations


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT" or "[IPV6]:PORT". Raises ValueError."""
    host, separator, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not separator or not host or (":" in host and not bracketed):
        raise ValueError(f"{address!r} is not HOST:PORT")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"{port!r} is not a port")
    return host, int(port)
