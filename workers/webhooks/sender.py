"""One try of a delivery over HTTP, and what it came to: a closed code, never an exception.

Redirects are not followed, no proxy is asked, answers are read up to a bound, and the whole try has
one time limit, so that a receiver which drips its answer holds nobody.
"""

import asyncio
import ssl
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import httpcore

from infra import signatures
from infra.clock import Clock
from infra.settings import Webhooks
from stores.system.deliveries import Claimed
from workers.webhooks.guard import AddressRefused, GuardedBackend, NameUnknown
from workers.webhooks.message import message_of

RESPONSE_BYTES_MAX: Final = 500
"""Of a receiver's answer: enough for its error, shown to people; the rest is not read."""

CONNECTIONS_MAX: Final = 32
"""One for each delivery under way."""

KEPT_ALIVE_S: Final = 5.0

OK: Final = "ok"

UNTRIED: Final = frozenset({"event_gone", "key_changed"})
"""Codes of tries that nothing was sent in: neither the receiver's fault nor mended by trying again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a try came to."""

    code: str
    status: int | None = None
    response: str = ""


class Sender:
    """The HTTP side of one process."""

    def __init__(self, settings: Webhooks, installation_key: bytes, clock: Clock) -> None:
        self._settings = settings
        self._key = installation_key
        self._check = signatures.key_check(installation_key)
        self._clock = clock
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl.create_default_context(),
            max_connections=CONNECTIONS_MAX,
            keepalive_expiry=KEPT_ALIVE_S,
            network_backend=GuardedBackend(settings.hosts),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()

    async def send(self, one: Claimed) -> Outcome:
        """Send it once."""
        if one.body is None:
            return Outcome("event_gone")
        if one.key_check != self._check:
            return Outcome("key_changed")
        host = (urlsplit(one.url).hostname or "").lower()
        if not one.url.startswith("https://") and host not in self._settings.hosts:
            return Outcome("not_encrypted")
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                return await self._post(one)
        except (TimeoutError, httpcore.TimeoutException):
            return Outcome("timeout")
        except AddressRefused:
            return Outcome("address_refused")
        except NameUnknown:
            return Outcome("name_unknown")
        except ssl.SSLError as error:
            return Outcome("tls_failed", response=str(error)[:RESPONSE_BYTES_MAX])
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError, ValueError) as error:
            is_tls = isinstance(error.__cause__, ssl.SSLError)
            code = "tls_failed" if is_tls else "connection_failed"
            return Outcome(code, response=str(error)[:RESPONSE_BYTES_MAX])

    async def _post(self, one: Claimed) -> Outcome:
        message = message_of(one, self._key, int(self._clock.now().timestamp()))
        seconds = self._settings.timeout_s
        limits: dict[str, Any] = dict.fromkeys(("connect", "read", "write", "pool"), seconds)
        target = httpcore.URL(one.url)
        headers = [(b"host", _host(target)), *message.headers]
        async with self._pool.stream(
            "POST", target, headers=headers, content=message.body, extensions={"timeout": limits}
        ) as answer:
            said = await _beginning(answer)
        status = answer.status
        if 200 <= status < 300:
            return Outcome(OK, status, said)
        return Outcome("redirect" if 300 <= status < 400 else "http_status", status, said)


def _host(target: httpcore.URL) -> bytes:
    """The header as it is for this address; standard ports are not said."""
    host = b"[" + target.host + b"]" if b":" in target.host else target.host
    standard = {b"http": 80, b"https": 443}[target.scheme]
    return host if target.port in (None, standard) else host + b":%d" % target.port


async def _beginning(answer: httpcore.Response) -> str:
    """The first bytes of the body as text that can be stored."""
    read = b""
    async for chunk in answer.aiter_stream():
        read += chunk[: RESPONSE_BYTES_MAX - len(read)]
        if len(read) >= RESPONSE_BYTES_MAX:
            break
    return read.decode("utf-8", "replace").replace("\x00", "\ufffd")
