"""Connections to public addresses only: what a name resolves to is checked, and what was connected.

A name is resolved once and the connection goes to the very address that was checked, so that a name
cannot answer differently the second time.
"""

import asyncio
import socket
from collections.abc import Iterable
from typing import Any, Final

import httpcore

from infra.addresses import is_public

CONNECT_TRIES_MAX: Final = 4
"""Addresses of one name that are tried."""


class AddressRefused(Exception):
    """The target, or what it resolves to, does not belong to the public network."""


class NameUnknown(Exception):
    """The name resolves to nothing."""


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Dials for the HTTP pool. `allowed` are hosts that may be anywhere."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(allowed)
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to a checked address. Raises AddressRefused, NameUnknown or httpcore's errors."""
        del local_address
        is_free = host.lower() in self._allowed
        addresses = await _resolve(host, port)
        checked = [one for one in addresses if is_free or is_public(one)]
        if not checked:
            raise AddressRefused(host)
        last: Exception | None = None
        for address in checked[:CONNECT_TRIES_MAX]:
            try:
                stream = await self._inner.connect_tcp(
                    address, port, timeout=timeout, socket_options=socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                last = error
                continue
            peer = stream.get_extra_info("server_addr")
            if not is_free and not is_public(str(peer[0])):
                await stream.aclose()
                raise AddressRefused(host)
            return stream
        assert last is not None
        raise last

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """No webhook is a file."""
        raise AddressRefused(path)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


async def _resolve(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NameUnknown(host) from error
    return list(dict.fromkeys(str(one[4][0]) for one in found))
