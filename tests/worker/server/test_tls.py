"""Certificates: who gets in, and what happens when the files change."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.served_worker import DEADLINE_SECONDS, served
from support.tiny_loaded_model import loaded
from support.tiny_model import tiny_decoder

from prefixcache_client import AsyncClient, Tls, UnavailableError
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.server.tls import TlsFiles, TlsIdentity, tls_identity

NAME = "localhost"


class Folder:
    """The files that a worker was given, and the authority that signed its certificate."""

    def __init__(self, path: Path) -> None:
        self.files = TlsFiles(certificate=path / "worker.pem", key=path / "worker.key")
        self.clients = TlsFiles(
            certificate=self.files.certificate, key=self.files.key, client_ca=path / "clients.pem"
        )
        self.authority = trustme.CA()
        self.client_authority = trustme.CA()
        self.client_authority.cert_pem.write_to_path(str(self.clients.client_ca))
        self.renew()

    def renew(self) -> None:
        """A new certificate by a new authority, written one file after the other."""
        self.authority = trustme.CA()
        pair = self.authority.issue_cert(NAME)
        self.files.certificate.write_bytes(b"".join(blob.bytes() for blob in pair.cert_chain_pems))
        self.files.key.write_bytes(pair.private_key_pem.bytes())


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


async def is_served(address: str, authority: trustme.CA, client: trustme.LeafCert | None = None) -> bool:
    """Whether a client that trusts this authority gets an answer over a new connection."""
    credentials = grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(),
        None if client is None else client.private_key_pem.bytes(),
        None if client is None else b"".join(blob.bytes() for blob in client.cert_chain_pems),
    )
    target = address.replace("127.0.0.1", NAME)
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(target, credentials, options) as channel:
        call = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=DEADLINE_SECONDS
        )
        code = await call.code()
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
    return code is grpc.StatusCode.OK


async def test_a_new_certificate_is_served_to_new_connections(folder: Folder):
    first = folder.authority
    async with served(loaded(tiny_decoder()), tls=TlsIdentity(folder.files)) as worker:
        assert await is_served(worker.address, first)
        folder.renew()
        assert await is_served(worker.address, folder.authority)
        assert not await is_served(worker.address, first)


@pytest.mark.parametrize("spoil", [lambda files: files.key.unlink(), lambda files: files.key.write_text("?")])
async def test_files_that_do_not_fit_leave_the_former_certificate(
    folder: Folder, spoil: Callable[[TlsFiles], object], caplog: pytest.LogCaptureFixture
):
    async with served(loaded(tiny_decoder()), tls=TlsIdentity(folder.files)) as worker:
        spoil(folder.files)
        assert await is_served(worker.address, folder.authority)
        assert await is_served(worker.address, folder.authority)
        assert len([record for record in caplog.records if "former certificate" in record.message]) == 1
        folder.renew()
        assert await is_served(worker.address, folder.authority)


async def test_a_client_checks_the_worker_and_shows_its_own_certificate(folder: Folder, tmp_path: Path):
    ca, pair = tmp_path / "ca.pem", folder.client_authority.issue_cert("client")
    folder.authority.cert_pem.write_to_path(str(ca))
    pair.cert_chain_pems[0].write_to_path(str(tmp_path / "client.pem"))
    pair.private_key_pem.write_to_path(str(tmp_path / "client.key"))
    own = {"certificate": tmp_path / "client.pem", "key": tmp_path / "client.key"}

    async with served(loaded(tiny_decoder()), tls=TlsIdentity(folder.clients)) as worker:
        address = worker.address.replace("127.0.0.1", NAME)
        async with AsyncClient(address, tls=Tls(ca=ca, **own)) as client:
            generation = await client.generate([5, 6, 7], max_tokens=2)
        assert len(generation.choices[0].token_ids) == 2
        for tls in (Tls(ca=ca), Tls(**own), None):
            async with AsyncClient(address, tls=tls) as client:
                with pytest.raises(UnavailableError):
                    await client.model_info(deadline=DEADLINE_SECONDS)


def test_a_clients_certificate_needs_its_key():
    for half in ({"certificate": "c"}, {"key": "k"}):
        with pytest.raises(ValueError, match="go together"):
            Tls(**half)


async def test_without_a_known_certificate_no_caller_gets_in(folder: Folder):
    async with served(loaded(tiny_decoder()), tls=TlsIdentity(folder.clients)) as worker:
        known = folder.client_authority.issue_cert("client")
        unknown = trustme.CA().issue_cert("client")
        assert await is_served(worker.address, folder.authority, known)
        assert not await is_served(worker.address, folder.authority, unknown)
        assert not await is_served(worker.address, folder.authority)


async def test_plain_text_gets_no_answer(folder: Folder):
    async with served(loaded(tiny_decoder()), tls=TlsIdentity(folder.files)) as worker:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await worker.health()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("has_client_ca", [False, True])
async def test_pythons_own_servers_follow_the_files_too(folder: Folder, has_client_ca: bool):
    identity = TlsIdentity(folder.clients if has_client_ca else folder.files)

    def welcome(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"welcome")
        writer.close()

    server = await asyncio.start_server(welcome, "127.0.0.1", 0, ssl=identity.ssl_context())
    port = server.sockets[0].getsockname()[1]

    async def shaken_hands(authority: trustme.CA, client: trustme.LeafCert | None) -> bool:
        context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
        if client is not None:
            client.configure_cert(context)
        try:
            reader, writer = await asyncio.open_connection(NAME, port, ssl=context)
            words = await reader.read()  # with TLS 1.3 a client's certificate is judged after its handshake
        except (ssl.SSLError, ConnectionError):
            return False
        writer.close()
        return words == b"welcome"

    async with server:
        known = folder.client_authority.issue_cert("client") if has_client_ca else None
        first = folder.authority
        assert await shaken_hands(first, known)
        folder.renew()
        assert await shaken_hands(folder.authority, known)
        assert not await shaken_hands(first, known)
        if has_client_ca:
            assert not await shaken_hands(folder.authority, None)
            assert not await shaken_hands(folder.authority, trustme.CA().issue_cert("client"))


def test_what_cannot_be_used_is_refused_at_the_start(folder: Folder, tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    stranger = Folder(other)
    missing = tmp_path / "none.pem"
    locked = tmp_path / "locked.key"
    os.mkdir(locked)
    files = folder.files
    for certificate, key, client_ca, sentence in (
        (missing, files.key, None, f"--tls-certificate: cannot read {missing}: No such file"),
        (files.certificate, missing, None, f"--tls-key: cannot read {missing}: No such file"),
        (files.certificate, locked, None, f"--tls-key: cannot read {locked}: Is a directory"),
        (files.certificate, files.key, missing, f"--tls-client-ca: cannot read {missing}: No such file"),
        (files.key, files.key, None, f"--tls-certificate: {files.key} is not a PEM file that can be used"),
        (files.certificate, files.certificate, None, f"--tls-key: {files.certificate} is not a PEM file"),
        (files.certificate, files.key, files.key, f"--tls-client-ca: {files.key} is not a PEM file"),
        (files.certificate, stranger.files.key, None, f"is not the key of {files.certificate}"),
    ):
        with pytest.raises(ConfigError) as caught:
            TlsIdentity(TlsFiles(certificate=certificate, key=key, client_ca=client_ca))
        assert sentence in str(caught.value)


def test_the_settings_go_together():
    assert tls_identity(None, None, None) is None
    for settings, missing in (
        (("c", None, None), "--tls-key"),
        ((None, "k", None), "--tls-certificate"),
        ((None, None, "a"), "--tls-certificate"),
    ):
        with pytest.raises(ConfigError, match=f"{missing}: is missing"):
            tls_identity(*settings)
