"""Which addresses a request of somebody else's choosing may go to: public ones only. Pure."""

import ipaddress
from typing import Final

TRANSLATED: Final = ipaddress.ip_network("64:ff9b::/96")
"""RFC 6052: the last 32 bits are an IPv4 address that a gateway translates to."""

LOCAL_NAMES: Final = (".localhost", ".local", ".internal")
"""Suffixes of names that never stand for a host of the public network."""


def is_public(address: str) -> bool:
    """Whether the address belongs to the public network; what is no address does not.

    Loopback, private, link-local (cloud metadata), shared, reserved and multicast addresses do not,
    also where they are wrapped in an IPv6 address.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        if found in TRANSLATED:
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFF_FFFF)))
        if found.sixtofour is not None or found.teredo is not None:
            return False
    return found.is_global and not found.is_multicast and not found.is_reserved


def is_local_name(host: str) -> bool:
    """Whether a host's name says by itself that it is not public."""
    name = "." + host.rstrip(".").lower()
    return name.endswith(LOCAL_NAMES)


def is_address(host: str) -> bool:
    """Whether a host is given by its address."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
