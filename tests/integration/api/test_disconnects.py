"""F23: a client that leaves in the middle holds nothing, and leaves nothing half done.

Three ways to leave (close, reset, half-open: it stops reading and says that it sends no more) in the
middle of each kind of exchange that takes time.
"""

import re
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psutil
import pytest

from stores import tables as t
from tests.integration.api.world import CALC, SPEC, Tenant, World, installation
from tests.support.waiting import wait_until
from venusrl._archive import pack

GONE_WITHIN_S: Final = 5.0

LARGE: Final = 24 << 20
"""More than the sockets of both sides hold."""

Leave = Callable[[socket.socket], None]


def reset(connection: socket.socket) -> None:
    """Answer whatever comes with a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def half_open(connection: socket.socket) -> None:
    """Say that nothing more is sent, and read no more."""
    connection.shutdown(socket.SHUT_WR)


WAYS: Final[Mapping[str, Leave]] = {
    "close": socket.socket.close,
    "reset": reset,
    "half_open": half_open,
}


@dataclass(frozen=True, slots=True)
class Gone:
    """Where a client was, and what is left of it."""

    tenant: Tenant

    def ask(self, head: str, body: bytes = b"", read: int = 0) -> socket.socket:
        """A connection in the middle of a request, or of reading its answer."""
        address = urlsplit(self.tenant.world.address)
        connection = socket.create_connection((address.hostname, address.port), timeout=20.0)
        lines = f"{head} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.tenant.key}\r\n"
        connection.sendall(lines.encode() + body)
        if read:
            assert connection.recv(read)
        return connection

    def in_flight(self) -> int:
        """Requests that the gateway serves, apart from the one that asks."""
        with self.tenant.world.http() as http:
            text = http.get("/metrics").text
        (found,) = re.findall(r"^venus_http_in_flight (\d+)", text, re.MULTILINE)
        return int(found) - 1

    def sockets(self) -> int:
        """Connections that the gateway holds."""
        port = urlsplit(self.tenant.world.address).port
        mine = psutil.Process().net_connections("tcp")
        return sum(1 for one in mine if one.laddr.port == port and one.status != "LISTEN")

    def assert_nothing_held(self) -> None:
        """No request is served and no connection is held for who has left."""
        wait_until(lambda: self.in_flight() == 0, GONE_WITHIN_S, "a request is served for nobody")
        wait_until(lambda: self.sockets() == 0, GONE_WITHIN_S, "a connection is held for nobody")


@pytest.fixture
def world(database_url: str, tmp_path: Path) -> Iterator[World]:
    """A gateway that waits one second for a client who reads nothing."""
    with installation(database_url, tmp_path / "home", VENUS_CLIENT_SEND_S="1") as made:
        yield made


@pytest.fixture
def gone(tenant: Tenant) -> Iterator[Gone]:
    """The one who leaves; the next client is served as ever."""
    found = Gone(tenant)
    yield found
    found.assert_nothing_held()
    with tenant.http() as http:
        assert http.get("/v1/jobs").status_code == 200


ways = pytest.mark.parametrize("leave", WAYS.values(), ids=WAYS)


@ways
def test_a_listener_of_events_who_leaves(gone: Gone, leave: Leave) -> None:
    gone.tenant.environment()
    with gone.tenant.http() as http:
        job = http.post("/v1/jobs", json=dict(SPEC)).json()
    path = f"/v1/jobs/{job['id']}/events"
    with gone.ask(f"GET {path}", b"Accept: text/event-stream\r\n\r\n", 64) as listener:
        assert gone.in_flight() == 1
        leave(listener)
        gone.assert_nothing_held()


@ways
def test_an_upload_that_breaks_off_leaves_no_version(
    gone: Gone, world: World, leave: Leave
) -> None:
    data = pack(CALC)
    half = data[: len(data) // 2]
    head = f"Content-Type: application/gzip\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    with gone.ask("POST /v1/environments/calc/versions", head + half) as uploader:
        wait_until(lambda: gone.in_flight() == 1, GONE_WITHIN_S, "it has not begun")
        leave(uploader)
        gone.assert_nothing_held()
    assert not world.rows(t.environment_version)
    assert not world.rows(t.operation)
    with gone.tenant.http(**{"Content-Type": "application/gzip"}) as http:
        again = http.post("/v1/environments/calc/versions", content=data)
    assert (again.status_code, again.json()["version"]) == (201, 1)


@ways
def test_a_download_that_breaks_off(gone: Gone, leave: Leave) -> None:
    checkpoint = gone.tenant.checkpoint(gone.tenant.ended(), b"0" * LARGE)
    path = f"/v1/checkpoints/{checkpoint}/files/model.bin"
    with gone.ask(f"GET {path}", b"\r\n", 4096) as reader:
        wait_until(lambda: gone.in_flight() == 1, GONE_WITHIN_S, "it has not begun")
        leave(reader)
        # Who only stops reading has gone when it took nothing for as long as the setting says.
        wait_until(lambda: gone.in_flight() == 0, GONE_WITHIN_S, "a request is served for nobody")


@ways
def test_a_look_whose_asker_leaves_goes_on_once_and_is_found_again(
    gone: Gone, world: World, leave: Leave
) -> None:
    checkpoint = gone.tenant.checkpoint(gone.tenant.ended())
    body = b'{"prompt": "1+1"}'
    head = f"Content-Type: application/json\r\nIdempotency-Key: k\r\nContent-Length: {len(body)}"
    path = f"/v1/checkpoints/{checkpoint}/generate"
    with gone.ask(f"POST {path}", head.encode() + b"\r\n\r\n" + body) as asker:
        wait_until(lambda: world.rows(t.operation), GONE_WITHIN_S, "it has not begun")
        leave(asker)
        gone.assert_nothing_held()
    with gone.tenant.http(**{"Idempotency-Key": "k"}) as http:
        again = http.post(path, params={"wait": 0}, json={"prompt": "1+1"})
    (operation,) = [row for row in world.rows(t.operation) if row.kind == "generate"]
    assert again.json()["id"] == operation.id
