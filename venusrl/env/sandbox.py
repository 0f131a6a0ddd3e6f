"""The sandbox as an environment sees it, and the requests that carry its calls to the node agent.

One sandbox belongs to one rollout (a fresh one to grading). Every call is keyed
(rollout, try, turn, ordinal) by the process that makes it, so the node agent runs it once and can
hand out its result again. Bytes stay bytes: decoding with replacement is for display only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

EXEC_TIMEOUT_S: Final = 30.0
"""A tool command without a limit of its own must not outlive its turn."""

PYTHON_TIMEOUT_S: Final = 10.0
"""Code in the warm interpreter blocks every later call of its sandbox until it ends."""

OUTPUT_BYTES_MAX: Final = 1 << 20
"""Kept of each stream of a command; what exceeds it is counted in `truncated_bytes`."""

FILE_BYTES_MAX: Final = 8 << 20
"""Largest file that read and write move in one call; one frame must hold it."""

SandboxFailure: TypeAlias = Literal["lost", "refused", "not_found", "denied", "too_large"]
"""Why a call has no result. `lost` and `refused` are the platform's, the others the caller's."""


class SandboxError(Exception):
    """A sandbox call without a result; a command that fails has a result, its exit code."""

    def __init__(self, reason: SandboxFailure, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: SandboxFailure = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended; `truncated_bytes` counts what both streams lost to the output limit."""

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    truncated_bytes: int = 0
    timed_out: bool = False

    @property
    def text(self) -> str:
        """Standard output for display: bytes that are not UTF-8 are replaced, never an error."""
        return self.stdout.decode("utf-8", errors="replace")


class Sandbox(Protocol):
    """Where tools run. Relative paths start at the sandbox's working folder."""

    async def exec(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = EXEC_TIMEOUT_S
    ) -> ExecResult:
        """Run a program of the sandbox to its end; no shell is added."""
        ...

    async def python(self, source: str, *, timeout_s: float = PYTHON_TIMEOUT_S) -> ExecResult:
        """Run statements in the sandbox's warm interpreter, without starting a process.

        Names live on from call to call. `stdout` is what the source printed; an exception gives
        exit code 1 with its traceback on `stderr`.
        """
        ...

    async def read(self, path: str) -> bytes:
        """The bytes of a regular file; links and special files are refused as `denied`."""
        ...

    async def write(self, path: str, content: bytes) -> None:
        """Replace a regular file, making its parent folders."""
        ...


@dataclass(frozen=True, slots=True)
class CallKey:
    """Identity of one sandbox call; `turn` is -1 in setup, `ordinal` counts from 0 in each turn."""

    rollout: str
    try_: int
    turn: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """`Sandbox.exec` on its way to the node agent."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    timeout_s: float = EXEC_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class PythonRequest:
    """`Sandbox.python` on its way to the node agent."""

    source: str
    timeout_s: float = PYTHON_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """`Sandbox.read` on its way to the node agent."""

    path: str


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """`Sandbox.write` on its way to the node agent."""

    path: str
    content: bytes


SandboxRequest: TypeAlias = ExecRequest | PythonRequest | ReadRequest | WriteRequest
"""Everything that an environment can ask of its sandbox."""

SandboxResult: TypeAlias = ExecResult | bytes | None
"""What comes back: a command's result, a file's bytes, or nothing for a write."""
