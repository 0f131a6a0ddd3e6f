"""Which hosts a user's address may lead to."""

import socket
from typing import Any

import httpx
import pytest

from infra.addresses import is_public
from infra.outside import HostForbidden, OutsideTransport, is_listed, is_private


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.9.10",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fd00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::1",
    ],
)
def test_an_address_of_no_public_network_is_private(address: str) -> None:
    assert not is_public(address)
    assert is_private(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700:4700::1111", "64:ff9b::101:101"])
def test_a_public_address_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "a.localhost", "db.internal", "[::1]"])
def test_names_of_the_own_machine_are_private_before_any_look_up(host: str) -> None:
    assert is_private(host)


def test_other_names_are_known_only_when_they_are_resolved() -> None:
    assert not is_private("judge.example.com")


def test_the_operators_list_names_hosts_with_or_without_a_port() -> None:
    assert is_listed("127.0.0.1", 8000, ["127.0.0.1"])
    assert is_listed("Judge.Lan", 443, ["judge.lan"])
    assert is_listed("127.0.0.1", 8000, ["127.0.0.1:8000"])
    assert not is_listed("127.0.0.1", 8001, ["127.0.0.1:8000"])
    assert not is_listed("127.0.0.2", 8000, ["127.0.0.1"])


async def test_a_name_with_one_private_address_among_public_ones_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answers(*_: Any, **__: Any) -> list[Any]:
        pair = ("1.1.1.1", 443), ("127.0.0.1", 443)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", one) for one in pair]

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    async with httpx.AsyncClient(transport=OutsideTransport((), 1)) as client:
        with pytest.raises(HostForbidden, match="not a public host"):
            await client.get("https://rebinding.example.com/")
