"""How a client makes sure that it talks to the right worker, and shows who it is itself."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass

import grpc

StrPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Encrypt the connection. Files are PEM and are read when a client is made.

    >>> Client("worker.example.com:50051", tls=Tls(ca="ca.pem"))
    """

    ca: StrPath | None = None
    """Authorities of the worker's certificate; None: those that gRPC brings along."""
    certificate: StrPath | None = None
    """The client's own certificate with its chain, for workers that ask for one; with `key`."""
    key: StrPath | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together: give both or neither")

    def credentials(self) -> grpc.ChannelCredentials:
        """What gRPC makes of the files. Raises OSError when one cannot be read."""
        return grpc.ssl_channel_credentials(
            root_certificates=_content(self.ca),
            private_key=_content(self.key),
            certificate_chain=_content(self.certificate),
        )

    def ssl_context(self) -> ssl.SSLContext:
        """What HTTP makes of the files; without `ca`, the machine's own authorities. Raises OSError."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


def _content(path: StrPath | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb") as file:
        return file.read()
