"""The root that all members of a zygote see: built once, pivoted into, then read-only for ever.

Guest code: standard library only, Python 3.9 on. Runs with the rights to mount, before any code of a
sandbox exists. What a member adds for itself (`confine.py`) is mounted on the empty folders here.
"""

from __future__ import annotations

import os
from typing import Any

from sandboxes.guest import kernel

EMPTY_FOLDERS = ("/proc", "/dev", "/dev/shm", "/dev/pts", "/work", "/run", "/run/proc", "/etc")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
    "/dev/ptmx": "pts/ptmx",
}

SYSTEM = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NODEV
ROOT_BYTES = 1 << 20
"""A few small files and empty folders; nothing can write to it once it is built."""


def leave_host(user_namespace: bool) -> None:
    """Mounts of our own, a pid namespace for what we fork, without root a user namespace of our own."""
    uid, gid = os.getuid(), os.getgid()
    own = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID
    kernel.unshare(own | (kernel.CLONE_NEWUSER if user_namespace else 0))
    if user_namespace:
        map_ids(0, uid, gid)
    kernel.mount("", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)


def map_ids(inside: int, uid: int, gid: int) -> None:
    """Show our own ids as another one in the user namespace that we just entered."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside} {uid} 1"),
        ("gid_map", f"{inside} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as place:
            place.write(text)


def build(plan: dict[str, Any]) -> None:
    """Build the root that the plan describes at its folder, and move into it."""
    root: str = plan["folder"]
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", root, "tmpfs", flags, f"size={ROOT_BYTES},mode=755")
    for place in EMPTY_FOLDERS:
        os.mkdir(root + place, 0o755)
    for source, target in plan["binds"]:
        os.makedirs(root + target, 0o755, exist_ok=True)
        kernel.bind(source, root + target, SYSTEM)
    for target, text in plan["files"].items():
        with open(root + target, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(root + target, 0o644)
    for path, target in {**plan["links"], **DEVICE_LINKS}.items():
        os.symlink(target, root + path)
    for name in DEVICES:
        with open(f"{root}/dev/{name}", "w", encoding="ascii"):
            pass
        kernel.bind(f"/dev/{name}", f"{root}/dev/{name}", kernel.ATTR_NOSUID)
    # A user namespace may mount a /proc only where it sees a whole one already.
    kernel.mount("/proc", root + "/proc", "", kernel.MS_BIND | kernel.MS_REC)
    kernel.pivot_into(root)
    kernel.mount("", "/", "", kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | flags)
