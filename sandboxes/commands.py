"""Programs that run beside the calls of a sandbox: started, read and fed as they go.

Many may run at once. What a program writes comes in chunks, in the order of each stream; a reader
that does not read stops the writer, and holds no more than `WINDOW_BYTES`. A program ends as
`ProcessEnd`; a sandbox that is gone ends all of them with SandboxError, `lost`, which is never how a
program ended.
"""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

WINDOW_BYTES: Final = 256 * 1024
"""Output of one program that may be on its way or unread, and input that it has not taken yet."""

CHUNK_BYTES_MAX: Final = 64 * 1024
"""A chunk is one frame; what others say comes between two of them."""

COMMANDS_MAX: Final = 32
"""Programs of one sandbox at a time; each needs some descriptors of its agent."""


class StreamName(StrEnum):
    """Where a chunk was written; a terminal has one stream, `stdout`."""

    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class Terminal:
    """A pseudo-terminal of so many characters; both at least 1."""

    rows: int = 24
    columns: int = 80


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its words; no shell is added."""

    argv: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    """Added to those of the sandbox. Programs are looked for on the sandbox's own path."""
    folder: str = ""
    """Where it starts; the work folder if empty."""
    timeout_s: float | None = None
    """Without it the program may run as long as its sandbox."""
    terminal: Terminal | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some bytes of a stream, in order; a character may be cut by their border."""

    stream: StreamName
    content: bytes


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a program ended: by a status, or by a signal, which is then not 0."""

    exit_code: int
    signal: int = 0
    timed_out: bool = False
    """Its time limit ended it, and all of its session."""


class Process(Protocol):
    """A running program. Methods raise SandboxError, `lost`, once its sandbox is gone."""

    @property
    def pid(self) -> int:
        """Its number inside; 0 if no such program could be started, which ends with exit code 127."""
        ...

    def read(self) -> Awaitable[Chunk | None]:
        """The next chunk; None once it has ended and all was read."""
        ...

    def wait(self) -> Awaitable[ProcessEnd]:
        """How it ended. Only what is read comes to an end: unread output may hold a program up."""
        ...

    def write(self, content: bytes) -> Awaitable[None]:
        """Feed it; returns once it is on its way. Raises SandboxError, `refused`, for a closed input.

        What a program does not read is dropped when it ends.
        """
        ...

    def close_input(self) -> None:
        """Nothing more comes: the end of a pipe, on a terminal the character that says so."""
        ...

    def signal(self, number: int) -> None:
        """Signal its process group; on a terminal the group in the foreground. After its end, nobody.

        SIGKILL reaches both groups of a terminal.
        """
        ...

    def resize(self, terminal: Terminal) -> None:
        """Change the size of its terminal. Raises SandboxError, `refused`, if it has none."""
        ...

    def stop(self) -> None:
        """Kill its whole session and forget what it still says; nothing happens to one that ended."""
        ...
