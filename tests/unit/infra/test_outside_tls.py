"""TLS of a pinned connection: the address was judged, the certificate is checked against the name."""

import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from infra.outside import OutsideTransport

NAME = "judge.test"


def certificate(folder: Path, name: str) -> Path:
    """A self-signed certificate for a name, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


class Answers(BaseHTTPRequestHandler):
    """Says which host was asked for."""

    def do_GET(self) -> None:
        data = str(self.headers["Host"]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A TLS server on the loopback whose certificate is for NAME, which resolves to it."""
    server = HTTPServer(("127.0.0.1", 0), Answers)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(tmp_path, NAME))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    real = socket.getaddrinfo

    def resolved(host: Any, *more: Any, **options: Any) -> Any:
        return real("127.0.0.1" if str(host).endswith(".test") else host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def trusting(folder: Path) -> ssl.SSLContext:
    """A client that trusts the server's certificate."""
    return ssl.create_default_context(cafile=str(folder / f"{NAME}.pem"))


async def test_the_name_is_kept_for_the_certificate_and_the_host_header(
    port: int, tmp_path: Path
) -> None:
    transport = OutsideTransport((NAME,), 1, trusting(tmp_path))
    async with httpx.AsyncClient(transport=transport) as client:
        answer = await client.get(f"https://{NAME}:{port}/")
    assert answer.text == f"{NAME}:{port}"


async def test_a_certificate_of_another_name_is_refused(port: int, tmp_path: Path) -> None:
    transport = OutsideTransport(("other.test",), 1, trusting(tmp_path))
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(httpx.ConnectError, match=r"other\.test|[Hh]ostname"):
            await client.get(f"https://other.test:{port}/")


async def test_a_certificate_that_nobody_vouches_for_is_refused(port: int) -> None:
    async with httpx.AsyncClient(transport=OutsideTransport((NAME,), 1)) as client:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await client.get(f"https://{NAME}:{port}/")
