"""Which user runs Postgres, and which folders that user can reach.

Postgres refuses to run as root. As root we therefore drop to an account that already exists; no
user is created and no mode of a folder that is not ours is changed. `initdb` looks its user up in
the password database, so a number without a name will not do.
"""

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ACCOUNT_NAMES: Final = ("postgres", "nobody")
"""Tried in order: the distribution's own account first, since other daemons share `nobody`."""


class NoAccountError(RuntimeError):
    """We are root and no unprivileged account exists."""


@dataclass(frozen=True, slots=True)
class Account:
    """The user that owns the cluster; `is_self` when that is who we are."""

    name: str
    uid: int
    gid: int
    is_self: bool


def choose_account() -> Account:
    """Ourselves, or as root the first existing unprivileged account."""
    if os.geteuid() != 0:
        return Account("self", os.geteuid(), os.getegid(), is_self=True)
    for name in ACCOUNT_NAMES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid, is_self=False)
    raise NoAccountError(f"running as root and none of the accounts {ACCOUNT_NAMES} exists")


def can_traverse(path: Path, account: Account) -> bool:
    """Whether the account may walk through every existing folder on the way to `path`."""
    if account.is_self:
        return True
    resolved = path.resolve()
    return all(
        _may_search(folder, account) for folder in (resolved, *resolved.parents) if folder.exists()
    )


def _may_search(folder: Path, account: Account) -> bool:
    status = folder.stat()
    if status.st_uid == account.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == account.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def own_folder(path: Path, account: Account) -> Path:
    """Make `path` a private folder of the account; parents that must be made stay walkable."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o755)  # whatever our umask: the account must walk through it
    path.mkdir(mode=0o700, exist_ok=True)
    if not account.is_self and path.stat().st_uid != account.uid:
        os.chown(path, account.uid, account.gid)
    return path
