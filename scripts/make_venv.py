"""Make the virtual environment that everything runs in. Standard library only; run by `make venv`.

    python3 scripts/make_venv.py [--force]

Steps (docs/adr/0003): a bare environment; every package but torch from `constraints/all.txt`, by
hash, without resolving; torch at its pinned version, the CPU build where no GPU is found; this tree
as an editable install. A stamp over all inputs makes a second run cost nothing. Needs pip only.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "venus.stamp"
CONSTRAINTS = ROOT / "constraints" / "all.txt"

OLDEST_PYTHON = (3, 11)

TORCH = "2.13.0"

TORCH_INDEX_VARIABLE = "VENUS_TORCH_INDEX"
"""Address of a package index with torch's CPU builds, such as PyTorch publishes; optional."""

INPUTS = ("pyproject.toml", "constraints/all.txt", "scripts/make_venv.py")

NO_PIP_REMEDY = """\
This Python can make virtual environments but has no pip to fill them with (ensurepip is missing).
Install it, then run the same command again:
    Debian, Ubuntu:  apt-get install python3-venv        (or python3-pip)
    Fedora:          dnf install python3-pip
Or name another interpreter:  make PYTHON=/path/to/python3.11 ...
"""


def main() -> int:
    """Command-line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--force", action="store_true", help="make it anew from nothing")
    arguments = parser.parse_args()
    if sys.version_info[:2] < OLDEST_PYTHON:
        wanted = ".".join(str(part) for part in OLDEST_PYTHON)
        return fail(f"Python {wanted} or newer is needed, this is {sys.version.split()[0]}")
    if arguments.force:
        shutil.rmtree(VENV, ignore_errors=True)
    stamp = expected_stamp()
    if STAMP.exists() and STAMP.read_text() == stamp:
        return 0
    try:
        make_bare()
        install_locked()
        install_torch()
        install_tree()
    except subprocess.CalledProcessError as error:
        return fail(f"failed: {' '.join(map(str, error.cmd))}")
    STAMP.write_text(stamp)
    say("ready")
    return 0


def expected_stamp() -> str:
    """Digest of everything that decides what gets installed."""
    digest = hashlib.sha256()
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    about = (sys.version, sysconfig.get_platform(), str(ROOT), str(has_gpu()))
    digest.update("\n".join(about).encode())
    return digest.hexdigest()


def make_bare() -> None:
    """A virtual environment with pip, also where the distribution left ensurepip out."""
    if PYTHON.exists() and can_run(PYTHON, "-m", "pip", "--version"):
        return
    say(f"making {VENV}")
    if can_run(sys.executable, "-c", "import ensurepip; ensurepip.version()"):
        venv.EnvBuilder(with_pip=True, symlinks=True, clear=True).create(VENV)
        return
    venv.EnvBuilder(with_pip=False, symlinks=True, clear=True).create(VENV)
    if not can_run(sys.executable, "-m", "pip", "--python", str(PYTHON), "--version"):
        shutil.rmtree(VENV)
        raise SystemExit(fail(NO_PIP_REMEDY))
    outside = [sys.executable, "-m", "pip", "--python", str(PYTHON), "install", "-qq", "pip"]
    run(outside, pip_environ())


def install_locked() -> None:
    """Every package but torch, exactly as locked."""
    say("installing packages (about a minute the first time)")
    pip("--require-hashes", "--no-deps", "-r", str(CONSTRAINTS))


def install_torch() -> None:
    """The pinned torch. Its hash is not locked: builds of one version differ by machine."""
    if installed_torch() == TORCH:
        return
    if has_gpu():
        pip(f"torch=={TORCH}")
        return
    say(f"installing torch {TORCH}, CPU build")
    sources: list[list[str]] = [[]]
    if os.environ.get(TORCH_INDEX_VARIABLE):
        sources.append(["--index-url", os.environ[TORCH_INDEX_VARIABLE]])
    for source in sources:
        if can_run(
            *pip_command("--no-deps", *source, f"torch=={TORCH}+cpu"), environ=pip_environ()
        ):
            return
    say(
        "no CPU build in the configured package sources; taking the default build, which on "
        f"x86-64 is large. To avoid that, set {TORCH_INDEX_VARIABLE} to PyTorch's CPU index"
    )
    pip(f"torch=={TORCH}")


def installed_torch() -> str:
    """Installed version without its build tag; empty when there is none."""
    code = "from importlib.metadata import version; print(version('torch').partition('+')[0])"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def install_tree() -> None:
    """This tree, editable: its folders are the import packages, `venus` is on the path."""
    pip("--no-deps", "--no-build-isolation", "--editable", str(ROOT))


def has_gpu() -> bool:
    """Whether an accelerator's driver is loaded here."""
    return Path("/proc/driver/nvidia/version").exists() and bool(shutil.which("nvidia-smi"))


def pip(*arguments: str) -> None:
    """Run the environment's pip; raises when it fails."""
    run(pip_command(*arguments), pip_environ())


def pip_command(*arguments: str) -> list[str]:
    """An install command of the environment's pip."""
    return [
        str(PYTHON), "-m", "pip", "install", "-qq", "--disable-pip-version-check",
        "--no-input", "--root-user-action=ignore", *arguments,
    ]  # fmt: skip


def pip_environ() -> dict[str, str]:
    """Our environment, less a constraint file of the machine: what we install is pinned already."""
    return {**os.environ, "PIP_CONSTRAINT": os.devnull, "PIP_USER": "0"}


def run(command: list[str], environ: dict[str, str] | None = None) -> None:
    """Run to its end; raises when it fails."""
    subprocess.run(command, check=True, cwd=ROOT, env=environ)


def can_run(*command: str | Path, environ: dict[str, str] | None = None) -> bool:
    """Whether the command ends well; its output is dropped."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT, env=environ, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode == 0


def say(text: str) -> None:
    """One line of progress."""
    sys.stderr.write(f"venv: {text}\n")
    sys.stderr.flush()


def fail(text: str) -> int:
    """The reason, and the exit status."""
    say(text)
    return 1


if __name__ == "__main__":
    sys.exit(main())
