"""A client and a worker that differ about encryption: the error says so, and not that nobody is there."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
import trustme

from prefixcache_client import Client, Tls, UnavailableError

AUTHORITY = trustme.CA()


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    AUTHORITY.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path / "ca.pem"


@pytest.fixture
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a server: "plain", "tls", "mutual", which wants certificates of clients, or "misnamed"."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    if request.param == "plain":
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        name = "worker.example" if request.param == "misnamed" else "127.0.0.1"
        certificate = AUTHORITY.issue_cert(name)
        chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
        credentials = grpc.ssl_server_credentials(
            [(certificate.private_key_pem.bytes(), chain)],
            root_certificates=AUTHORITY.cert_pem.bytes() if request.param == "mutual" else None,
            require_client_auth=request.param == "mutual",
        )
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(grace=None).wait()


def refusal(address: str, tls: Tls | None) -> str:
    with Client(address, tls=tls) as client, pytest.raises(UnavailableError) as caught:
        client.health()
    return str(caught.value)


@pytest.mark.parametrize("address", ["tls", "mutual"], indirect=True)
def test_a_client_without_tls_is_told_that_the_worker_has_it(address: str) -> None:
    assert refusal(address, None).startswith(
        f"{address}: no connection, since worker and client differ about TLS"
    )


@pytest.mark.parametrize("address", ["plain", "mutual"], indirect=True)
def test_a_client_with_tls_is_told_that_the_worker_has_none_or_wants_a_certificate(
    address: str, ca: Path
) -> None:
    assert "differ about TLS" in refusal(address, Tls(ca=ca))


@pytest.mark.parametrize("address", ["tls"], indirect=True)
def test_an_unknown_authority_is_told(address: str, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")

    assert "CERTIFICATE_VERIFY_FAILED" in refusal(address, Tls(ca=tmp_path / "other.pem"))


@pytest.mark.parametrize("address", ["misnamed"], indirect=True)
def test_a_certificate_of_another_name_is_told(address: str, ca: Path) -> None:
    assert "Hostname Verification Check failed" in refusal(address, Tls(ca=ca))
