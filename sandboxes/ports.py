"""The sandbox port: what the node agent asks of a runtime, and how a sandbox can end.

The unit of allocation is the fork of members; a member key names one sandbox for ever, so that a
repeated fork answers with the one that exists. Calls of one sandbox run one after the other; beside
them, programs that are read as they go (`commands.py`) and questions about files (`files.py`), which
wait for nobody. A call fails with `SandboxError` of the environment kit: `lost` means that the sandbox
is gone, and nothing that a lost sandbox says is ever a tool result.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from domain.errors import VenusError
from domain.sandbox import MemberKey, SandboxLimits
from sandboxes.commands import Command, Process
from sandboxes.files import FileRequest, FileResult
from venusrl.env.sandbox import SandboxRequest, SandboxResult


class Isolation(StrEnum):
    """What stands between a sandbox and its machine, strongest first."""

    VM = "vm"
    KERNEL_FILTER = "kernel_filter"
    NAMESPACES = "namespaces"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a runtime can do; a missing one degrades by a stated rule and shows in the API."""

    isolation: Isolation
    cow_memory: bool
    live_fork: bool
    balloon: bool
    page_out: bool
    checkpoint: bool
    network: bool
    rootless: bool
    pause: bool = False
    """Without it `pause` is refused."""
    syscall_filter: bool = False
    """Whether system calls that no tool needs are refused inside."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A host folder that a sandbox sees read-only, for instance a grader's files."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """One member of a fork. `seed` reaches the sandbox as `VENUS_SEED`."""

    key: MemberKey
    hostname: str
    seed: int
    limits: SandboxLimits
    mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True, slots=True)
class SandboxStats:
    """What a sandbox costs now, in memory and processes."""

    private_bytes: int
    """Memory that no other sandbox shares, swapped pages included."""
    pids: int
    swapped_bytes: int = 0
    """Of the private bytes, those that are not in memory."""
    shared_bytes: int = 0
    """Pages that it maps of what it was cloned from, a snapshot or a warm process; in memory once for all."""
    overhead_bytes: int = 0
    """What its machine's own process holds besides."""
    cpu_s: float | None = None
    """CPU seconds of its processes so far, those included that their parents have waited for; None where
    the runtime does not measure it."""


class EventKind(StrEnum):
    """How a sandbox ended without being asked to: by itself, over its memory, or otherwise."""

    EXITED = "exited"
    OOM = "oom"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class SandboxEvent:
    """A sandbox is gone; `cause` is for the ledger."""

    key: MemberKey
    kind: EventKind
    cause: str


class ForkFailed(VenusError):
    """The runtime could not make a sandbox; the message says why."""

    code = "fork_failed"


class Sandbox(Protocol):
    """One running sandbox."""

    @property
    def key(self) -> MemberKey:
        """Whose it is."""
        ...

    def call(self, request: SandboxRequest) -> Awaitable[SandboxResult]:
        """Run one request to its end, after those that were asked before. Raises SandboxError."""
        ...

    def start(self, command: Command) -> Awaitable[Process]:
        """Start a program, at once. Raises SandboxError: `refused` where too many run already."""
        ...

    def files(self, request: FileRequest) -> Awaitable[FileResult]:
        """Answer a question about files, at once. Raises SandboxError."""
        ...

    def stats(self) -> SandboxStats:
        """What it costs now; zeros once it is gone."""
        ...


Listener = Callable[[SandboxEvent], None]
"""Told once of each sandbox that ends by itself; never of one that was destroyed."""


class Runtime(Protocol):
    """Makes, keeps and destroys sandboxes of one machine."""

    def capabilities(self) -> Capabilities:
        """What this runtime can do here."""
        ...

    def listen(self, listener: Listener) -> None:
        """Tell this listener of ends from now on."""
        ...

    async def fork(self, members: Sequence[SandboxSpec]) -> tuple[Sandbox, ...]:
        """One sandbox for each member, in order, existing ones included. Raises ForkFailed.

        After a failure none of the members that this call started is left.
        """
        ...

    def get(self, key: MemberKey) -> Sandbox | None:
        """The live sandbox of a key."""
        ...

    def keys(self) -> tuple[MemberKey, ...]:
        """Keys of all live sandboxes."""
        ...

    async def pause(self, key: MemberKey) -> None:
        """Stop all its processes; returns when they stand still. A paused one stays as it is.

        Nothing inside is lost. Calls wait, and time that passes is not charged to them. Raises
        SandboxError: `lost` for a key that has no sandbox, `refused` where it cannot be done; then
        the sandbox runs on.
        """
        ...

    async def resume(self, key: MemberKey) -> None:
        """Let a paused sandbox go on; a running one stays as it is. Raises SandboxError, `lost`."""
        ...

    async def reclaim(self, key: MemberKey, bytes_: int) -> int:
        """Take idle memory back, about so many bytes; how many the node got, 0 where it cannot.

        Nothing inside is lost: what is needed again comes back at the cost of reading it. Meant for
        paused sandboxes. Raises SandboxError, `lost`.
        """
        ...

    async def destroy(self, key: MemberKey) -> None:
        """End a sandbox and all its processes; returns when they are gone. Unknown keys too."""
        ...

    async def close(self) -> None:
        """Destroy everything."""
        ...
