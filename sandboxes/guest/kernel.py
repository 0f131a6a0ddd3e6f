"""The kernel calls of confinement that the standard library of old Pythons lacks. Errors are OSError.

Guest code: standard library only, Python 3.9 on. Imported by the zygote alone.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_PRIVATE = 1 << 18

MNT_DETACH = 2
ATTR_RDONLY = 1
ATTR_NOSUID = 2
ATTR_NODEV = 4

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_SETATTR = 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91, "riscv64": 91}

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _checked(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def supported() -> bool:
    """Whether the numbers above are known for this machine."""
    return platform.machine() in _PIVOT_ROOT


def unshare(flags: int) -> None:
    """Leave the named namespaces for new ones; of a pid namespace only children notice."""
    _checked("unshare", _libc.unshare(ctypes.c_int(flags)))


def setns(fd: int, kind: int) -> None:
    """Enter a namespace."""
    _checked("setns", _libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)))


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """Mount a file system, or change a mount."""
    words = [os.fsencode(word) if word else None for word in (source, target, kind)]
    result = _libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None)
    _checked(f"mount {kind or source} on {target}", result)


def bind(source: str, target: str, attributes: int) -> None:
    """Show a file or folder, and all mounts below it, at another place, with these attributes."""
    mount(source, target, "", MS_BIND | MS_REC)
    change = struct.pack("QQQQ", attributes, 0, 0, 0)
    result = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(_AT_RECURSIVE),
        change,
        ctypes.c_size_t(len(change)),
    )
    _checked(f"mount_setattr {target}", result)


def unmount(target: str) -> None:
    """Take a mount and all below it out of sight."""
    _checked(f"unmount {target}", _libc.umount2(os.fsencode(target), ctypes.c_int(MNT_DETACH)))


def pivot_into(folder: str) -> None:
    """Make a mount the root and forget the former one."""
    os.chdir(folder)
    number = ctypes.c_long(_PIVOT_ROOT[platform.machine()])
    _checked("pivot_root", _libc.syscall(number, b".", b"."))
    unmount(".")
    os.chdir("/")


def sethostname(name: str) -> None:
    """Name the machine of this UTS namespace."""
    text = name.encode()
    _checked("sethostname", _libc.sethostname(text, ctypes.c_size_t(len(text))))


def _prctl(what: str, option: int, value: int, more: object = 0) -> None:
    last = more if isinstance(more, ctypes.Array) else ctypes.c_ulong(0)
    numbers = (ctypes.c_ulong(value), last, ctypes.c_ulong(0), ctypes.c_ulong(0))
    _checked(what, _libc.prctl(ctypes.c_int(option), *numbers))


def die_with_parent(signal_number: int) -> None:
    """Be sent this signal when the parent's thread ends; a change of credentials forgets it."""
    _prctl("pdeathsig", _PR_SET_PDEATHSIG, signal_number)


def name_process(name: str) -> None:
    """What lists of processes show; the last 15 characters count."""
    text = ctypes.create_string_buffer(name.encode()[-15:], 16)
    _checked("name", _libc.prctl(ctypes.c_int(_PR_SET_NAME), text, 0, 0, 0))


def make_dumpable() -> None:
    """Own our files in /proc again, which a change of credentials takes away."""
    _prctl("dumpable", _PR_SET_DUMPABLE, 1)


def forbid_new_privileges() -> None:
    """No program gains rights by being executed, for ever."""
    _prctl("no_new_privs", _PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up all of them, also those that an executed program could get back."""
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as text:
        last = int(text.read())
    for capability in range(last + 1):
        _prctl("capbset_drop", _PR_CAPBSET_DROP, capability)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    number = ctypes.c_long(_CAPSET[platform.machine()])
    _checked("capset", _libc.syscall(number, header, bytes(24)))


def install_filter(program: bytes) -> None:
    """Hold every system call from now on against a compiled filter, for ever."""
    content = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(content))
    _prctl("seccomp", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.create_string_buffer(head, 16))
