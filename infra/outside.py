"""Requests to addresses that users name: only public hosts, resolved first and then connected to.

A name is resolved here, every address of it is judged, and the connection goes to the very address
that was judged: a second answer of the name server changes nothing. Redirects are never followed and
proxies of the environment never used. Hosts that the operator lists are exempt.
"""

import asyncio
import socket
import ssl
from collections.abc import Sequence

import httpx

from infra.addresses import is_address, is_local_name, is_public


class HostForbidden(httpx.TransportError):
    """The address leads into the platform's own network."""


def is_listed(host: str, port: int, allowed: Sequence[str]) -> bool:
    """Whether the operator allows this host, at any port or at this one."""
    bare = _bare(host)
    return any(_bare(one) == bare or one.lower() == f"{host.lower()}:{port}" for one in allowed)


def is_private(host: str) -> bool:
    """Whether a host, before any name is resolved, is known not to be public."""
    bare = _bare(host)
    return is_local_name(bare) or (is_address(bare) and not is_public(bare))


class OutsideTransport(httpx.AsyncBaseTransport):
    """Connects to public hosts and to `allowed` ones. A client of its own for each host: connections
    are kept by address, and TLS is checked against the name that opened them."""

    def __init__(
        self,
        allowed: Sequence[str],
        connections_max: int,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        limits = httpx.Limits(max_connections=connections_max)
        self._allowed = tuple(allowed)
        self._inner = httpx.AsyncHTTPTransport(verify=verify, limits=limits, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send to an address that was judged; the `Host` header and TLS keep the name."""
        host = request.url.host
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        address = await self._address(host, port)
        extensions = {**request.extensions, "sni_hostname": host}
        pinned = httpx.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,
            stream=request.stream,
            extensions=extensions,
        )
        return await self._inner.handle_async_request(pinned)

    async def aclose(self) -> None:
        """Close connections."""
        await self._inner.aclose()

    async def _address(self, host: str, port: int) -> str:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
        except (OSError, UnicodeError, OverflowError) as error:
            raise httpx.ConnectError(f"{host} cannot be resolved: {error}") from error
        addresses = [str(one[4][0]).partition("%")[0] for one in found]
        if is_listed(host, port, self._allowed):
            return addresses[0]
        if not addresses or not all(map(is_public, addresses)):
            raise HostForbidden(f"{host} is not a public host")
        return addresses[0]


def _bare(host: str) -> str:
    return host.lower().strip("[]").rstrip(".")
