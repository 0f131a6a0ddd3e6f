"""Compiles the native guest agent and the launcher of machines, once per source and compiler."""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import sandboxes.guest
from sandboxes.runtimes.qemu.tools import QemuUnavailable

GUEST: Final = Path(sandboxes.guest.__file__).parent
HERE: Final = Path(__file__).parent

FLAGS: Final = ("-std=gnu11", "-static", "-Os", "-Wall", "-Wextra", "-Werror")
"""Static: the guest has no libraries, and a launcher must not depend on where it runs."""

COMPILE_TIMEOUT_S: Final = 120.0
"""Two seconds on an idle machine."""


def build_agent(compiler: str, cache: Path) -> Path:
    """The guest agent's binary. Raises QemuUnavailable."""
    return _compile(compiler, sorted(GUEST.glob("*.c")), sorted(GUEST.glob("*.h")), cache, "agent")


def build_launcher(compiler: str, cache: Path) -> Path:
    """The launcher's binary. Raises QemuUnavailable."""
    return _compile(compiler, [HERE / "launch.c"], [], cache, "launch")


def _compile(
    compiler: str, sources: Sequence[Path], headers: Sequence[Path], cache: Path, name: str
) -> Path:
    digest = hashlib.sha256("\0".join((compiler, *FLAGS)).encode())
    for path in (*sources, *headers):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    target = cache / f"{name}-{digest.hexdigest()[:16]}"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        made = Path(folder, name)
        _run([compiler, *FLAGS, "-o", str(made), *map(str, sources)], name)
        made.chmod(0o755)
        os.replace(made, target)
    return target


def _run(command: Sequence[str], name: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise QemuUnavailable(f"cannot compile the {name}: {error}") from error
    if done.returncode != 0:
        raise QemuUnavailable(f"cannot compile the {name}: {done.stderr[-400:]}")
