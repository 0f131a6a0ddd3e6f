"""Children that die with their parent, and processes named so that a reused pid is never hit.

`PR_SET_PDEATHSIG` fires when the spawning *thread* ends, so spawn from the main thread. Two ways:
`die_with_parent` is a `preexec_fn` for parents with one thread (the supervisor, a Celery pool child
before it starts its renewal thread): between fork and exec it runs one bound C call. A parent with
threads uses `dying_with_parent`, which prefixes the command with `infra/pdeathsig.py`: nothing of
ours then runs between fork and exec, where a lock held by another thread would hang the child.
"""

import ctypes
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1
"""From linux/prctl.h."""

WRAPPER: Final = Path(__file__).with_name("pdeathsig.py")

STAT_START_TIME: Final = 22 - 3
"""Index of `starttime` in /proc/PID/stat, counted after the closing bracket of the command name."""

NO_PROCESS: Final = frozenset({errno.ESRCH, errno.ENOENT, errno.EINVAL})
"""Answers of pidfd_open to a pid that is free, or by now the number of some process's thread."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


def set_parent_death_signal(number: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send `number` to this process when the thread that spawned it ends."""
    if _libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """A `preexec_fn`; it also ends the child whose parent died before the call took effect."""
    parent = os.getpid()

    def before_exec() -> None:
        set_parent_death_signal(number)
        if os.getppid() != parent:
            os._exit(1)

    return before_exec


def dying_with_parent(
    command: Sequence[str], number: signal.Signals = signal.SIGKILL
) -> tuple[str, ...]:
    """`command` behind a wrapper that asks for the signal and then becomes the command."""
    parent = str(os.getpid())
    return (sys.executable, "-I", "-S", str(WRAPPER), str(int(number)), parent, *command)


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A pid with its start time in clock ticks since boot: together they name one process."""

    pid: int
    start_ticks: int


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of the process that has this pid now; None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return ProcessIdentity(pid, int(fields[STAT_START_TIME]))


def is_running(identity: ProcessIdentity) -> bool:
    """Whether exactly this process exists and is no zombie."""
    if identify(identity.pid) != identity:
        return False
    try:
        text = Path(f"/proc/{identity.pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def open_pidfd(identity: ProcessIdentity) -> int | None:
    """A pidfd of exactly this process; None when it is gone. The caller closes it."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except OSError as error:
        if error.errno in NO_PROCESS:
            return None
        raise
    if identify(identity.pid) == identity:
        return descriptor
    os.close(descriptor)
    return None


def send_signal(identity: ProcessIdentity, number: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone."""
    descriptor = open_pidfd(identity)
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True
