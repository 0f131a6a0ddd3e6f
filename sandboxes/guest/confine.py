"""What a fork of the zygote does to itself before it is a sandbox: namespaces, mounts, no rights.

Guest code: standard library only, Python 3.9 on. Order matters. All mounts are made by the zygote's
user, and the user namespace of the sandbox comes last and owns none of them: even with every
capability that it could give, nothing inside can change what it sees.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
from typing import Any

from sandboxes.guest import kernel, root

OWN = (
    kernel.CLONE_NEWNS
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
)
"""Namespaces that a member leaves by itself; it was forked into its pid namespace."""

OOM_SCORE = 500
"""The kernel, when memory ends, takes sandboxes before what the platform itself needs."""

MESSAGE_QUEUES = 1
"""System V queues hold kernel memory that no process maps, so that no poll would see it."""

_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x41
_PAGE = 4096


def confine(member: dict[str, Any], filter_program: bytes) -> None:
    """Become a sandbox. Raises OSError: then this process must end."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as place:
        place.write(str(OOM_SCORE))
    os.setsid()
    kernel.name_process(member["hostname"])
    kernel.unshare(OWN)
    _mount_own(member)
    kernel.sethostname(member["hostname"])
    _raise_loopback()
    _bound_ipc(member["shm_bytes"])
    os.chdir(member["home"])
    _become(member["uid"], member["inside_uid"])
    kernel.drop_capabilities()
    kernel.forbid_new_privileges()
    kernel.die_with_parent(signal.SIGKILL)
    if filter_program:
        kernel.install_filter(filter_program)


def _mount_own(member: dict[str, Any]) -> None:
    uid = member["uid"]
    quiet = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("proc", "/run/proc", "proc", quiet | kernel.MS_NOEXEC)
    kernel.unmount("/proc")
    kernel.mount("/run/proc", "/proc", "", kernel.MS_MOVE)
    owner = f"mode=755,uid={uid},gid={uid}"
    kernel.mount("tmpfs", member["home"], "tmpfs", quiet, f"size={member['disk_bytes']},{owner}")
    kernel.mount("tmpfs", "/dev/shm", "tmpfs", quiet, f"size={member['shm_bytes']},{owner}")
    options = "newinstance,ptmxmode=0666,mode=620"
    kernel.mount("devpts", "/dev/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, options)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP_RUNNING))


def _bound_ipc(shm_bytes: int) -> None:
    for name, value in (("shmall", shm_bytes // _PAGE), ("msgmni", MESSAGE_QUEUES)):
        with open(f"/proc/sys/kernel/{name}", "w", encoding="ascii") as place:
            place.write(str(value))


def _become(uid: int, inside: int) -> None:
    """The uid of this sandbox alone, shown inside as the agent's, in a user namespace of its own."""
    if os.getuid() != uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        kernel.make_dumpable()
    kernel.unshare(kernel.CLONE_NEWUSER)
    root.map_ids(inside, uid, uid)
    with open("/proc/sys/user/max_user_namespaces", "w", encoding="ascii") as place:
        place.write("0")
