"""Processes of one running stack, found in /proc as descendants of its supervisor.

Every process is named by pid and start time, so that a reused pid is never signalled, and only what
was found below our own supervisor ever is.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from infra.process import STAT_START_TIME, ProcessIdentity, is_running, send_signal

STAT_STATE: Final = 0
STAT_PARENT: Final = 1
"""Indexes in /proc/PID/stat, counted after the closing bracket of the command name."""

HOST_MARKS: Final = {
    "engine": "workers.rollout.main",
    "trainer": "workers.trainer.main",
    "node": "workers.fleet.main",
}
"""Words of a host's command line, by host kind."""

SCHEDULER_MARK: Final = "scheduler.main"
KEEPER_MARK: Final = "-Q hosts"
RUNNER_MARK: Final = "venusrl.env._runner"
ZYGOTE_MARK: Final = "sandboxes.guest.zygote"
"""In the command lines of a zygote, of what waits for it, and of its members."""

GUEST_MARK: Final = "/run/agent"


@dataclass(frozen=True, slots=True)
class Process:
    """One process as it was when it was looked at."""

    identity: ProcessIdentity
    parent: int
    command: str

    @property
    def pid(self) -> int:
        """Its pid, for messages."""
        return self.identity.pid

    @property
    def is_alive(self) -> bool:
        """Whether it still runs (a zombie does not)."""
        return is_running(self.identity)

    @property
    def is_bubblewrap(self) -> bool:
        """Whether it is a bwrap itself rather than what runs inside."""
        return Path(self.command.partition(" ")[0]).name == "bwrap"

    def send(self, number: signal.Signals) -> bool:
        """Signal exactly this process; False when it is gone."""
        return send_signal(self.identity, number)


def all_processes() -> dict[int, Process]:
    """Every process that is no zombie, by pid."""
    found = (_read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def descendants(root: int) -> list[Process]:
    """All processes below `root`, which is not among them, parents before children."""
    children: dict[int, list[Process]] = {}
    for process in all_processes().values():
        children.setdefault(process.parent, []).append(process)
    return list(_below(root, children))


def naming(text: str) -> list[Process]:
    """Processes whose command line or environment holds the text, whoever their parent is."""
    wanted = text.encode()
    own = os.getpid()
    return [
        process
        for process in all_processes().values()
        if process.pid != own
        and (text in process.command or wanted in _read_bytes(process.pid, "environ"))
    ]


def of_kind(processes: Sequence[Process], mark: str) -> list[Process]:
    """Those with the mark in their command line, bubblewraps left out."""
    return [p for p in processes if mark in p.command and not p.is_bubblewrap]


def hosts(processes: Sequence[Process], kind: str) -> list[Process]:
    """Host processes of a kind."""
    return of_kind(processes, HOST_MARKS[kind])


def keeper_main(processes: Sequence[Process], supervisor: int) -> list[Process]:
    """The Celery worker whose children are keepers."""
    return [p for p in of_kind(processes, KEEPER_MARK) if p.parent == supervisor]


def keeper_of(processes: Sequence[Process], host: Process) -> list[Process]:
    """The pool child that keeps this host."""
    return [p for p in of_kind(processes, KEEPER_MARK) if p.pid == host.parent]


def runners(processes: Sequence[Process]) -> list[Process]:
    """Environment processes: the program inside, not the bubblewraps around it."""
    return of_kind(processes, RUNNER_MARK)


def zygote_members(processes: Sequence[Process]) -> list[Process]:
    """Sandboxes that a zygote forked, and their interpreters; not the zygote, which stays warm."""
    marked = {p.pid: p for p in of_kind(processes, ZYGOTE_MARK)}
    above = {pid: marked.get(p.parent) for pid, p in marked.items()}
    return [p for p in marked.values() if (parent := above[p.pid]) and above[parent.pid]]


def bubblewraps(processes: Sequence[Process]) -> list[Process]:
    """All bubblewraps: sandboxes and environment processes."""
    return [p for p in processes if p.is_bubblewrap]


def _below(root: int, children: dict[int, list[Process]]) -> Iterator[Process]:
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(0), ()):
            yield child
            waiting.append(child.pid)


def _read(pid: int) -> Process | None:
    stat = _read_bytes(pid, "stat").decode(errors="replace")
    fields = stat.rpartition(")")[2].split()
    if not fields or fields[STAT_STATE] in "ZX":
        return None
    words = _read_bytes(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    identity = ProcessIdentity(pid, int(fields[STAT_START_TIME]))
    return Process(identity, int(fields[STAT_PARENT]), words)


def _read_bytes(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


Finder = Callable[[Sequence[Process]], list[Process]]
"""Picks processes of one kind out of a scan."""
