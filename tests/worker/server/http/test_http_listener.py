"""The port of the HTTP door: taken early, encrypted if asked for."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import httpx
import pytest
import trustme
from support.http_worker import http_served
from support.tiny_loaded_model import loaded
from support.tiny_model import tiny_decoder

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.server.http.listener import HttpListener
from prefixcache_worker.server.service import Service
from prefixcache_worker.server.tls import TlsFiles, TlsIdentity


async def test_the_port_is_taken_before_anybody_is_served():
    service = Service()
    address = service.bind_http("127.0.0.1:0")
    assert not address.endswith(":0")
    with pytest.raises(ConfigError, match=f"--http-address: cannot listen on {address}: another program"):
        HttpListener(address)
    await service.stop(drain_seconds=0)
    HttpListener(address)._socket.close()  # it is free again


@pytest.mark.parametrize("address", ["203.0.113.1:0", "no.such.host.invalid:0"])
def test_an_address_of_another_machine_is_refused(address: str):
    with pytest.raises(ConfigError, match="none of this machine"):
        HttpListener(address)


def test_an_ipv6_address_keeps_its_brackets():
    if not socket.has_ipv6:
        with pytest.raises(ConfigError):
            HttpListener("[::1]:0")
        return
    listener = HttpListener("[::1]:0")
    assert listener.address.startswith("[::1]:")
    listener._socket.close()


async def test_the_door_has_the_workers_certificate(tmp_path: Path):
    authority = trustme.CA()
    pair = authority.issue_cert("127.0.0.1")
    files = TlsFiles(certificate=tmp_path / "worker.pem", key=tmp_path / "worker.key")
    files.certificate.write_bytes(b"".join(blob.bytes() for blob in pair.cert_chain_pems))
    files.key.write_bytes(pair.private_key_pem.bytes())
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with http_served(loaded(tiny_decoder()), tls=TlsIdentity(files)) as worker:
        async with httpx.AsyncClient(base_url=f"https://{worker.address}", verify=trusting) as client:
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == "tiny"
        async with httpx.AsyncClient(base_url=f"https://{worker.address}") as client:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await client.get("/v1/models")
        with pytest.raises(httpx.TransportError):
            await worker.client.get("/v1/models")
