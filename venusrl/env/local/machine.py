"""What this machine offers: confined with bubblewrap, or plain with a notice that says so."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from venusrl.env.host.confinement import (
    SYSTEM_PATHS,
    find_bubblewrap,
    interpreter,
    interpreter_paths,
    link_kit,
    mirror,
    outermost,
)
from venusrl.env.host.judges import JudgePort
from venusrl.env.host.manifest import Manifest
from venusrl.env.host.ports import (
    EnvironmentCrashed,
    InstanceKey,
    SandboxPort,
)
from venusrl.env.host.process import (
    SandboxedEnvironment,
    discard_log,
    start_environment,
    start_plain_environment,
)
from venusrl.env.local.builds import built_here
from venusrl.env.local.sandbox import LocalSandbox, Shell, write_file
from venusrl.env.messages import Json, Rollout
from venusrl.env.sandbox import CallKey, SandboxError, SandboxRequest, SandboxResult

NOTICE: Final = (
    "tools run as plain processes in a temporary folder, not isolated from this machine"
    " (bubblewrap would confine them)"
)
"""Said once, before anything runs."""

GRADER_FOLDER: Final = "grader"
GRADER_TARGET: Final = "/grader"
GRADER_VARIABLE: Final = "VENUS_GRADER"
"""Where a reward's command finds the package's `grader/`; `/grader` on a node and in bubblewrap."""

PROBE_TIMEOUT_S: Final = 10.0
"""Bubblewrap starts in milliseconds, or is refused by the kernel."""


def probe_bubblewrap() -> Path | None:
    """The bubblewrap program if it works here: some kernels refuse its namespaces."""
    try:
        program = find_bubblewrap()
        command = [str(program), *_base(), "--", "/bin/true"]
        done = subprocess.run(command, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (EnvironmentCrashed, OSError, subprocess.TimeoutExpired):
        return None
    return program if done.returncode == 0 else None


@dataclass(frozen=True, slots=True)
class Machine:
    """Starts environment processes and sandboxes below `scratch`; `bubblewrap` None: plain."""

    bubblewrap: Path | None
    scratch: Path
    kit: Path

    @property
    def notice(self) -> str | None:
        """What the user must know before code runs; None where it is confined."""
        return NOTICE if self.bubblewrap is None else None

    async def start(
        self,
        folder: Path,
        manifest: Manifest,
        config: Mapping[str, Json] | None = None,
        judges: JudgePort | None = None,
    ) -> SandboxedEnvironment:
        """Start the environment process of a package. Raises EnvironmentFault, PackageInvalid."""
        chosen, built = config or {}, await built_here(folder)
        secrets = secrets_here(manifest)
        if self.bubblewrap is not None:
            return await start_environment(
                folder,
                manifest,
                chosen,
                discard_log,
                judges=judges,
                dependencies=built,
                secrets=secrets,
            )
        return await start_plain_environment(
            folder,
            manifest,
            chosen,
            self.kit,
            discard_log,
            judges=judges,
            dependencies=built,
            secrets=secrets,
        )

    def sandboxes(self, package: Path) -> LocalSandboxes:
        """Sandboxes for rollouts of this package, one folder each."""
        return LocalSandboxes(self, package)

    def shell(self, folder: Path, grader: Path | None = None) -> Shell:
        """How commands start in a work folder."""
        if self.bubblewrap is None:
            grader_path = "" if grader is None else str(grader)
            return Shell((), folder, _variables(folder, str(folder), grader_path))
        mounts = [] if grader is None else ["--ro-bind", str(grader), GRADER_TARGET]
        words = (
            str(self.bubblewrap),
            *_base(),
            *mounts,
            *("--bind", str(folder), "/work", "--symlink", "/work/.tmp", "/tmp"),
            *("--remount-ro", "/", "--chdir", "/work", "--"),
        )
        return Shell(words, folder, _variables(folder, "/work", GRADER_TARGET if grader else ""))


def secrets_here(manifest: Manifest) -> dict[str, str]:
    """The variables that the package needs, as far as this process has them; no others."""
    return {name: os.environ[name] for name in manifest.secrets if name in os.environ}


@contextmanager
def local_machine(*, plain: bool = False) -> Iterator[Machine]:
    """This machine for one command; everything made is gone afterwards."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="venus-env-")))
        kit = link_kit(scratch / "kit")
        yield Machine(None if plain else probe_bubblewrap(), scratch, kit)


@dataclass(frozen=True, slots=True)
class LocalSandboxes:
    """Implements `Sandboxes` on this machine."""

    machine: Machine
    package: Path

    @asynccontextmanager
    async def agent(self, key: InstanceKey) -> AsyncIterator[SandboxPort]:
        """A fresh work folder; gone at the end."""
        async with self._fresh(None) as sandbox:
            yield sandbox

    @asynccontextmanager
    async def grader(self, rollouts: Sequence[Rollout]) -> AsyncIterator[SandboxPort]:
        """A grading sandbox a rollout, made at its first call."""
        wave = _Wave(self, {one.id: one for one in rollouts})
        try:
            yield wave
        finally:
            await wave.close()

    @asynccontextmanager
    async def _fresh(self, grader: Path | None) -> AsyncIterator[LocalSandbox]:
        folder = Path(tempfile.mkdtemp(prefix="sandbox-", dir=self.machine.scratch))
        (folder / ".tmp").mkdir()
        sandbox = LocalSandbox(self.machine.shell(folder, grader))
        try:
            yield sandbox
        finally:
            await sandbox.close()
            shutil.rmtree(folder, ignore_errors=True)

    def grading(self) -> Path | None:
        """The package's grader folder."""
        folder = self.package.resolve() / GRADER_FOLDER
        return folder if folder.is_dir() else None


@dataclass(slots=True)
class _Wave:
    """The port of a group's grading sandboxes."""

    sandboxes: LocalSandboxes
    rollouts: Mapping[str, Rollout]
    _open: dict[str, asyncio.Task[LocalSandbox]] = field(default_factory=dict)
    _folders: list[Path] = field(default_factory=list)

    async def call(self, key: CallKey, request: SandboxRequest) -> SandboxResult:
        """Run one call of a reward."""
        task = self._open.get(key.rollout)
        if task is None:
            task = self._open[key.rollout] = asyncio.create_task(self._make(key.rollout))
        try:
            sandbox = await asyncio.shield(task)
        except OSError as error:
            raise SandboxError("lost", str(error)) from error
        return await sandbox.call(key, request)

    async def close(self) -> None:
        """End all of them."""
        for task in self._open.values():
            if not task.cancelled() and (await asyncio.wait({task})) and task.exception() is None:
                await task.result().close()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    async def _make(self, rollout: str) -> LocalSandbox:
        machine = self.sandboxes.machine
        folder = Path(tempfile.mkdtemp(prefix="grader-", dir=machine.scratch))
        self._folders.append(folder)
        (folder / ".tmp").mkdir()
        for path, text in self.rollouts[rollout].artefacts.items():
            write_file(folder, path, text.encode())
        return LocalSandbox(machine.shell(folder, self.sandboxes.grading()))


def _base() -> list[str]:
    """Namespaces and a read-only system, the same for every sandbox."""
    binds = outermost(interpreter_paths())
    return [
        *("--die-with-parent", "--new-session", "--unshare-user", "--unshare-ipc"),
        *("--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *("--uid", "1000", "--gid", "1000", "--cap-drop", "ALL", "--tmpfs", "/"),
        *(word for path in SYSTEM_PATHS for word in mirror(Path(path))),
        *("--ro-bind-try", "/etc/alternatives", "/etc/alternatives"),
        *(word for path in binds for word in ("--ro-bind", str(path), str(path))),
        *("--proc", "/proc", "--dev", "/dev"),
    ]


def _variables(folder: Path, home: str, grader: str) -> dict[str, str]:
    """A clean environment: no key or token of the user's shell reaches a tool."""
    return {
        "PATH": f"/usr/local/bin:/usr/bin:/bin:{interpreter().parent}",
        "HOME": home,
        "TMPDIR": f"{home}/.tmp",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "VENUS_SEED": "0",
        **({GRADER_VARIABLE: grader} if grader else {}),
    }
