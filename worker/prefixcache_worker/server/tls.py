"""The worker's certificate, and whose it takes, for both doors. New files count without a restart."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from prefixcache_worker.errors import ConfigError

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files: a certificate with its chain, its key, and the authorities of callers' certificates."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """With it, only callers whose certificate one of these authorities has signed get in."""


class TlsIdentity:
    """What the files said when they were last read, as gRPC and as Python's `ssl` want it.

    They are looked at again at every handshake, and read again when one of them has changed. While what
    they say does not fit together, as when only one of two has been written yet, the former certificate is
    served. Handshakes come from gRPC's threads and from asyncio: a race reads the files twice, no more.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Raises ConfigError, naming the flag, when a file cannot be read or the key is another's."""
        self._files = files
        self._stamp = self._stamp_now()
        self._pem, self._context = self._read()

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Credentials for a secure port."""

        def configuration() -> grpc.ServerCertificateConfiguration:
            self._refresh()
            key, certificate, client_ca = self._pem
            return grpc.ssl_server_certificate_configuration(
                [(key, certificate)], root_certificates=client_ca
            )

        return grpc.dynamic_ssl_server_credentials(
            configuration(), configuration, require_client_authentication=self._files.client_ca is not None
        )

    def ssl_context(self) -> ssl.SSLContext:
        """A context for a server of Python's own, which hands each connection to the latest certificate."""
        front = self._new_context()

        def use_latest(connection: ssl.SSLObject, _server_name: str | None, _front: ssl.SSLContext) -> None:
            self._refresh()
            connection.context = self._context

        front.sni_callback = use_latest
        return front

    def _refresh(self) -> None:
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        try:
            self._pem, self._context = self._read()
        except ConfigError as error:
            logger.warning("the former certificate is served on: %s", error)
        else:
            logger.info("%s has been read again", self._files.certificate)
        self._stamp = stamp

    def _stamp_now(self) -> tuple[tuple[int, int] | None, ...]:
        """What changes when a file does; None for one that is not there."""
        stamps = []
        for path in (self._files.certificate, self._files.key, self._files.client_ca):
            try:
                status = os.stat(path) if path is not None else None
            except OSError:
                status = None
            stamps.append(None if status is None else (status.st_mtime_ns, status.st_ino))
        return tuple(stamps)

    def _read(self) -> tuple[tuple[bytes, bytes, bytes | None], ssl.SSLContext]:
        files = self._files
        certificate, key = (
            _read_file("--tls-certificate", files.certificate),
            _read_file("--tls-key", files.key),
        )
        client_ca = None if files.client_ca is None else _read_file("--tls-client-ca", files.client_ca)
        _require_pair(certificate, key, files)
        if client_ca is not None:
            _parse("--tls-client-ca", files.client_ca, lambda: x509.load_pem_x509_certificates(client_ca))
        return (key, certificate, client_ca), self._new_context()

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._files.certificate, self._files.key)
            if self._files.client_ca is not None:
                context.load_verify_locations(self._files.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(
                f"--tls-certificate: {self._files.certificate} cannot be used: {error}"
            ) from error
        return context


def _require_pair(certificate: bytes, key: bytes, files: TlsFiles) -> None:
    leaf = _parse(
        "--tls-certificate", files.certificate, lambda: x509.load_pem_x509_certificates(certificate)
    )[0]
    private_key = _parse("--tls-key", files.key, lambda: load_pem_private_key(key, password=None))
    if leaf.public_key() != private_key.public_key():
        raise ConfigError(
            f"--tls-key: {files.key} is not the key of {files.certificate}; give the one it was made with"
        )


def _parse(flag: str, path: Path | None, parse: Callable[[], T]) -> T:
    try:
        return parse()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: the key has a password
        raise ConfigError(f"{flag}: {path} is not a PEM file that can be used: {error}") from error


def _read_file(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag}: cannot read {path}: {error.strerror}") from error


def tls_identity(certificate: str | None, key: str | None, client_ca: str | None) -> TlsIdentity | None:
    """What the three settings ask for. Raises ConfigError when one of them needs another."""
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        missing = "--tls-certificate" if certificate is None else "--tls-key"
        raise ConfigError(f"{missing}: is missing; a certificate and its key go together")
    return TlsIdentity(
        TlsFiles(
            certificate=Path(certificate),
            key=Path(key),
            client_ca=None if client_ca is None else Path(client_ca),
        )
    )
