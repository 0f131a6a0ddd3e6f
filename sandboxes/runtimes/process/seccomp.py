"""The system calls that no sandbox needs, compiled by libseccomp into one filter for every runtime
that takes one.

What is listed fails with EPERM, or ENOSYS where programs then fall back to something older. The rest
passes: tools are any program of the system, and a list of what is allowed would break some of them
with every new C library. Left out are doors into parts of the kernel with a record of holes, calls
that need rights nobody inside has, and memory that no poll of ours can see.
"""

import errno
import os
import tempfile
from typing import Final

CLONE_NEW: Final = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000)
"""Flags of `clone` that make namespaces; one rule for each, as a filter tests bits."""

CLONE_NEWNET: Final = 0x40000000

FAMILIES: Final = (1, 2, 10, 16)
"""Sockets that may be made: unix, IPv4, IPv6, netlink. Others reach drivers of the kernel, and vsock
would reach the machine below: it knows no namespaces."""

TTY_INJECTION: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX put words into the terminal that somebody else reads."""

DENIED: Final = (
    *("acct", "add_key", "bpf", "chroot", "delete_module", "fanotify_init", "finit_module"),
    *("fsconfig", "fsmount", "fsopen", "fspick", "init_module", "ioperm", "iopl", "kcmp"),
    *("kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "mbind", "migrate_pages"),
    *(
        "mount",
        "mount_setattr",
        "move_mount",
        "move_pages",
        "name_to_handle_at",
        "open_by_handle_at",
    ),
    *("open_tree", "perf_event_open", "personality", "pidfd_getfd", "pivot_root"),
    *("process_madvise", "process_vm_readv", "process_vm_writev", "ptrace", "quotactl"),
    *("quotactl_fd", "reboot", "request_key", "set_mempolicy", "setdomainname", "sethostname"),
    *("setns", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "swapoff", "swapon"),
    *("syslog", "umount2", "unshare", "uselib", "userfaultfd", "ustat", "vhangup", "vmsplice"),
    *("msgget", "semget"),
)
"""EPERM."""

ABSENT: Final = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_create")
"""ENOSYS: C libraries then use `clone`, whose flags a filter can read, and programs other ways."""

ABSENT_NUMBERS: Final = (447, 467)
"""memfd_secret and open_tree_attr, by the numbers that all machines share: older libraries do not
know their names."""


def compiled() -> bytes | None:
    """The filter as the kernel takes it; None where libseccomp is not installed."""
    try:
        import pyseccomp
    except (ImportError, RuntimeError, OSError):
        return None
    refuse, absent = pyseccomp.ERRNO(errno.EPERM), pyseccomp.ERRNO(errno.ENOSYS)
    made = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in DENIED:
        if _is_known(pyseccomp, name):
            made.add_rule(refuse, name)
    for call in (*ABSENT, *ABSENT_NUMBERS):
        if isinstance(call, int) or _is_known(pyseccomp, call):
            made.add_rule(absent, call)
    for flag in (*CLONE_NEW, CLONE_NEWNET):
        made.add_rule(refuse, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))
    for request in TTY_INJECTION:
        low_half = pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xFFFFFFFF, request)
        made.add_rule(refuse, "ioctl", low_half)
    for low, high in _gaps(FAMILIES):
        for family in range(low, high):
            made.add_rule(refuse, "socket", pyseccomp.Arg(0, pyseccomp.EQ, family))
    made.add_rule(refuse, "socket", pyseccomp.Arg(0, pyseccomp.GT, FAMILIES[-1]))
    with tempfile.TemporaryFile() as place:
        made.export_bpf(place)
        place.flush()
        os.lseek(place.fileno(), 0, os.SEEK_SET)
        return place.read()


def _is_known(library: object, name: str) -> bool:
    resolve = getattr(library, "resolve_syscall")  # noqa: B009 - the library has no types
    try:
        return int(resolve(_arch(library), name)) != -1
    except ValueError:
        return False


def _arch(library: object) -> object:
    return getattr(library, "Arch").NATIVE  # noqa: B009


def _gaps(kept: tuple[int, ...]) -> list[tuple[int, int]]:
    """The ranges below the last kept number that hold none of them."""
    return [(low + 1, high) for low, high in zip((-1, *kept), kept, strict=False)]
