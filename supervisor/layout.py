"""Where things lie under `VENUS_HOME`, and where they go when that place will not do.

Two limits decide: a Unix socket's path has at most 107 bytes, and the account that runs Postgres
must be able to walk to its data. A home that fails either keeps its logs, objects and keys; only
sockets or the cluster move, to a folder named after the home, so that the next start finds them.
"""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from supervisor.account import Account, can_traverse

SOCKET_PATH_BYTES_MAX: Final = 107
"""sizeof(sockaddr_un.sun_path) - 1 on Linux."""

LONGEST_SOCKET_NAME: Final = "/.s.PGSQL.5432.lock"
"""The longest name that a server puts beside its socket."""


class UnsafeFolderError(RuntimeError):
    """A fallback folder with our name exists and belongs to somebody else."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders of one installation. All but the fallbacks are below `home`."""

    home: Path

    @property
    def logs(self) -> Path:
        """One log file per process."""
        return self.home / "logs"

    @property
    def objects(self) -> Path:
        """The local object store."""
        return self.home / "objects"

    @property
    def lock(self) -> Path:
        """Held by the running supervisor; names its pid and address."""
        return self.home / "up.lock"

    @property
    def admin_key(self) -> Path:
        """The bootstrap key, mode 0600."""
        return self.home / "admin.key"

    @property
    def tag(self) -> str:
        """Short name of this home, for folders outside it."""
        return hashlib.sha256(str(self.home.resolve()).encode()).hexdigest()[:12]

    def make(self) -> "Layout":
        """Create the home and its plain folders. Raises UnsafeFolderError."""
        try:
            for folder in (self.home, self.logs, self.objects):
                folder.mkdir(parents=True, exist_ok=True)
            for folder in (self.logs, self.objects):
                # Ours alone: neither Postgres' account nor a sandbox reads anything here.
                folder.chmod(0o700)
        except OSError as error:
            cause = f"{error.filename or self.home}: {error.strerror}"
            raise UnsafeFolderError(f"{cause}; set VENUS_HOME to a folder of yours") from error
        return self

    def sockets(self, name: str) -> Path:
        """Folder for one server's sockets, short enough for a socket's path. Not created."""
        wanted = self.home / "run" / name
        if len(os.fsencode(wanted)) + len(LONGEST_SOCKET_NAME) <= SOCKET_PATH_BYTES_MAX:
            return wanted
        return _own_fallback(Path(tempfile.gettempdir()), self.tag) / name

    def reachable(self, name: str, account: Account) -> Path:
        """Folder for data that `account` must reach, under home or a fallback. Not created."""
        wanted = self.home / name
        if can_traverse(wanted, account):
            return wanted
        for base in (Path("/var/lib"), Path(tempfile.gettempdir()), Path("/tmp")):
            if os.access(base, os.W_OK) and can_traverse(base, account):
                return _own_fallback(base, self.tag) / name
        raise UnsafeFolderError(f"no folder that {account.name} can reach; set VENUS_HOME to one")


def _own_fallback(base: Path, tag: str) -> Path:
    """A folder of ours, walkable by others, never somebody else's of the same name."""
    folder = base / f"venusrl-{tag}"
    if not folder.exists():
        folder.mkdir()
        folder.chmod(0o755)  # whatever our umask: the account must walk through it
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise UnsafeFolderError(f"{folder} belongs to another user; remove it or set VENUS_HOME")
    return folder
