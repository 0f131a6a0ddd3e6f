"""Sandbox specs with defaults, and a runtime that ends with its test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from domain.ids import AttemptId, group_id
from domain.sandbox import MemberKey, SandboxLimits, SandboxPurpose
from sandboxes.commands import Command, Process, ProcessEnd, StreamName
from sandboxes.ports import Mount, Sandbox, SandboxSpec
from sandboxes.runtimes.process import ProcessRuntime
from sandboxes.runtimes.process.bwrap import AGENT_FOLDER, Installation, Launch
from sandboxes.runtimes.process.zygote import WARM_MODULES
from sandboxes.runtimes.qemu import QemuRuntime
from sandboxes.runtimes.qemu.build import build_agent
from sandboxes.runtimes.qemu.image import compile_module
from sandboxes.runtimes.qemu.tools import cache_folder
from venusrl.env.sandbox import ExecRequest, ExecResult, PythonRequest

ATTEMPT = AttemptId("att_01jtest")


def member(index: int = 0, try_: int = 1) -> MemberKey:
    """The key of an agent's sandbox."""
    return MemberKey(ATTEMPT, group_id(ATTEMPT, 0), index, try_, SandboxPurpose.AGENT)


def spec(
    index: int = 0,
    try_: int = 1,
    *,
    limits: SandboxLimits | None = None,
    mounts: tuple[Mount, ...] = (),
) -> SandboxSpec:
    """One member of a fork."""
    limits = limits or SandboxLimits()
    return SandboxSpec(member(index, try_), f"test-{index}", index, limits, mounts)


@asynccontextmanager
async def process_runtime(scratch: Path, *, is_warm: bool = True) -> AsyncIterator[ProcessRuntime]:
    """A runtime whose sandboxes are all gone afterwards; from bubblewrap alone if not warm."""
    runtime = ProcessRuntime(scratch / "guest", WARM_MODULES if is_warm else None)
    try:
        yield runtime
    finally:
        await runtime.close()


@asynccontextmanager
async def qemu_runtime() -> AsyncIterator[QemuRuntime]:
    """Machines of the user's own templates, which the probe has made; all gone afterwards."""
    runtime = QemuRuntime(cache_folder() / "templates")
    try:
        yield runtime
    finally:
        await runtime.close()


@asynccontextmanager
async def native_runtime(scratch: Path) -> AsyncIterator[ProcessRuntime]:
    """The `process` runtime with the native agent in the place of the reference, and no zygote."""
    runtime = ProcessRuntime(scratch / "guest", None)
    runtime._installation = NativeInstallation(scratch / "guest")
    try:
        yield runtime
    finally:
        await runtime.close()


class NativeInstallation(Installation):
    """Starts the native agent, with the interpreter that the reference would run on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._native = build_agent("cc", cache_folder())
        self._modules = [
            compile_module(self.interpreter.path, name, folder) for name in ("evaluate", "warm")
        ]

    def describe(self, launch: Launch, spec: SandboxSpec, info_fd: int) -> None:
        """The reference's command line, with another program in its place."""
        super().describe(launch, spec, info_fd)
        limits = launch.words[-4:]
        del launch.words[launch.words.index(self.interpreter.path) :]
        launch.words += ["/run/agent", *limits, self.interpreter.path, "3", "/run"]
        files = Launch()
        for compiled in self._modules:
            files.file(compiled, f"/run/{compiled.name}")
        files.file(self._native, "/run/agent")
        files.words[-4] = "0755"
        at = launch.words.index(f"{AGENT_FOLDER}/sandboxes/guest/wire.pyc") + 1
        launch.words[at:at] = files.words
        launch.fds += files.fds


async def shell(sandbox: Sandbox, script: str, timeout_s: float = 20.0) -> ExecResult:
    """Run a shell script."""
    result = await sandbox.call(ExecRequest(("sh", "-c", script), timeout_s=timeout_s))
    assert isinstance(result, ExecResult)
    return result


async def python(sandbox: Sandbox, source: str, timeout_s: float = 20.0) -> ExecResult:
    """Run Python in the warm interpreter."""
    result = await sandbox.call(PythonRequest(source, timeout_s=timeout_s))
    assert isinstance(result, ExecResult)
    return result


async def drained(process: Process) -> tuple[bytes, bytes, ProcessEnd]:
    """Everything that a program still says on its two streams, and how it ended."""
    said = {stream: bytearray() for stream in StreamName}
    while (chunk := await process.read()) is not None:
        said[chunk.stream] += chunk.content
    return bytes(said[StreamName.STDOUT]), bytes(said[StreamName.STDERR]), await process.wait()


async def heard(process: Process, word: bytes) -> bytes:
    """What a program says until this word was there."""
    said = bytearray()
    while word not in said:
        chunk = await process.read()
        assert chunk is not None, said
        said += chunk.content
    return bytes(said)


def script(text: str, timeout_s: float | None = 30.0) -> Command:
    """A shell script, as a program that is read as it goes."""
    return Command(("sh", "-c", text), timeout_s=timeout_s)
