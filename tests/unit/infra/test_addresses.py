"""Which addresses belong to the public network."""

import pytest

from infra.addresses import is_address, is_local_name, is_public


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07::1", "::ffff:8.8.8.8"])
def test_a_public_address_is_one(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1", "172.16.5.4", "192.168.1.1",
        "169.254.169.254", "100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "239.1.1.1",
        "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1",
        "fd12::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:db8::1", "", "localhost", "example.com", "2130706433", "0x7f.1",
    ],
)  # fmt: skip
def test_everything_else_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.", "a.localhost", "db.internal", "x.local"]
)
def test_a_name_may_be_local_by_itself(host: str) -> None:
    assert is_local_name(host)


def test_other_names_say_nothing_by_themselves() -> None:
    assert not is_local_name("example.com")
    assert not is_local_name("notlocalhost.com")
    assert not is_address("example.com")
    assert is_address("::1")
