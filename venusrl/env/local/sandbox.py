"""One sandbox on an author's machine: a work folder, commands in it, a warm interpreter.

Answers have the form and the limits of a node's sandboxes: output is capped per stream, a timeout
ends the command with everything it started, file calls stay inside the work folder. Unlike there, a
command's background processes end with it, and neither memory nor disk is bounded.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import json
import os
import signal
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from venusrl.env.host.confinement import interpreter
from venusrl.env.local import guest
from venusrl.env.sandbox import (
    FILE_BYTES_MAX,
    OUTPUT_BYTES_MAX,
    CallKey,
    ExecRequest,
    ExecResult,
    PythonRequest,
    ReadRequest,
    SandboxError,
    SandboxRequest,
    SandboxResult,
    WriteRequest,
)

READ_BYTES: Final = 1 << 16
"""One pipe's worth."""

EXIT_NOT_FOUND: Final = 127
"""What shells say when there is no such program."""

KILLED: Final = 128 + signal.SIGKILL
"""Exit code of a command that its timeout ended."""

LOST_NAMES: Final = b"the interpreter ended, its names are lost\n"


@dataclass(frozen=True, slots=True)
class Shell:
    """How commands are started: words before each command, its folder, its variables."""

    prefix: tuple[str, ...]
    folder: Path
    variables: dict[str, str]


@dataclass(slots=True)
class LocalSandbox:
    """Implements `SandboxPort`; calls run one after the other."""

    shell: Shell
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _interpreter: asyncio.subprocess.Process | None = None

    async def call(self, key: CallKey, request: SandboxRequest) -> SandboxResult:
        """Run one call to its end. Raises SandboxError."""
        async with self._turn:
            match request:
                case ExecRequest(argv, stdin, timeout_s):
                    return await self._exec(argv, stdin, timeout_s)
                case PythonRequest(source, timeout_s):
                    return await self._python(source, timeout_s)
                case ReadRequest(path):
                    return read_file(self.shell.folder, path)
                case WriteRequest(path, content):
                    write_file(self.shell.folder, path, content)
                    return None

    async def close(self) -> None:
        """End the warm interpreter; commands have ended with their calls."""
        if self._interpreter is not None:
            await _kill(self._interpreter)
            self._interpreter = None

    async def _start(self, argv: Sequence[str]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self.shell.prefix,
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.shell.folder,
            env=self.shell.variables,
            start_new_session=True,
        )

    async def _exec(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> ExecResult:
        try:
            process = await self._start(argv)
        except (OSError, ValueError) as error:
            detail = f"{argv[0]}: {getattr(error, 'strerror', None) or error}\n"
            return ExecResult(EXIT_NOT_FOUND, b"", detail.encode(errors="replace"))
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = _Kept(), _Kept()
        reading = [
            asyncio.create_task(out.take(process.stdout)),
            asyncio.create_task(err.take(process.stderr)),
            asyncio.create_task(_feed(process, stdin)),
        ]
        timed_out = False
        try:
            async with asyncio.timeout(timeout_s):
                await process.wait()
        except TimeoutError:
            timed_out = True
        finally:
            await _kill(process)
        await asyncio.gather(*reading, return_exceptions=True)
        code = KILLED if timed_out else _shell_code(process.returncode or 0)
        return ExecResult(code, bytes(out.kept), bytes(err.kept), out.cut + err.cut, timed_out)

    async def _python(self, source: str, timeout_s: float) -> ExecResult:
        process = self._interpreter
        if process is None or process.returncode is not None:
            words = [str(interpreter()), "-I", "-S", "-X", "utf8", "-c"]
            process = await self._start([*words, inspect.getsource(guest), str(OUTPUT_BYTES_MAX)])
            self._interpreter = process
        assert process.stdin is not None
        assert process.stdout is not None
        encoded = source.encode(errors="replace")
        try:
            async with asyncio.timeout(timeout_s):
                process.stdin.write(len(encoded).to_bytes(4, "big") + encoded)
                await process.stdin.drain()
                size = int.from_bytes(await process.stdout.readexactly(4), "big")
                answer = json.loads(await process.stdout.readexactly(size))
        except TimeoutError:
            await self.close()
            return ExecResult(KILLED, timed_out=True)
        except asyncio.CancelledError:
            await self.close()  # Its answer would be read as that of the next call.
            raise
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            await self.close()
            return ExecResult(_shell_code(process.returncode or 1) or 1, b"", LOST_NAMES)
        out, err = answer["out"].encode("latin-1"), answer["err"].encode("latin-1")
        return ExecResult(int(answer["code"]), out, err, int(answer["cut"]))


@dataclass(slots=True)
class _Kept:
    """The first bytes of a stream; what comes after is counted and dropped as it arrives."""

    kept: bytearray = field(default_factory=bytearray)
    cut: int = 0

    async def take(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(READ_BYTES):
            room = OUTPUT_BYTES_MAX - len(self.kept)
            self.kept += chunk[:room]
            self.cut += max(0, len(chunk) - room)


async def _feed(process: asyncio.subprocess.Process, stdin: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(stdin)
        await process.stdin.drain()
    except ConnectionError:
        pass  # The command does not read its input.
    process.stdin.close()


async def _kill(process: asyncio.subprocess.Process) -> None:
    """End a command's whole session; it may be over already."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    await process.wait()


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code


def read_file(folder: Path, path: str) -> bytes:
    """A regular file's bytes. Raises SandboxError."""
    fd = _open(folder, path, os.O_RDONLY)
    with os.fdopen(fd, "rb") as stream:
        size = os.fstat(fd).st_size
        if size > FILE_BYTES_MAX:
            raise SandboxError("too_large", f"{size} bytes")
        return stream.read(FILE_BYTES_MAX)


def write_file(folder: Path, path: str, content: bytes) -> None:
    """Replace a regular file, making its folders. Raises SandboxError."""
    target = _inside(folder, path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SandboxError("denied", str(error)) from error
    fd = _open(folder, path, os.O_WRONLY | os.O_CREAT)
    with os.fdopen(fd, "wb") as stream:
        stream.truncate(0)
        stream.write(content)


def _inside(folder: Path, path: str) -> Path:
    """The real place of a path below the work folder; `denied` for one that leads out of it."""
    home = folder.resolve()
    relative = path.removeprefix("/work/") if path.startswith("/work/") else path
    joined = Path(os.path.normpath(home / relative))
    parent = Path(os.path.realpath(joined.parent))
    if not parent.is_relative_to(home) or "\0" in path:
        raise SandboxError("denied", f"{path} is outside of the work folder")
    return parent / joined.name


def _open(folder: Path, path: str, flags: int) -> int:
    try:
        fd = os.open(_inside(folder, path), flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        raise SandboxError("not_found" if is_missing else "denied", str(error)) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise SandboxError("denied", f"{path} is not a regular file")
    return fd
