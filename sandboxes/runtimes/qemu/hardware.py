"""The sources of a template that cost time to make, made once per process: tools, binaries, image."""

import hashlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from sandboxes.runtimes.process.bwrap import fresh_uid
from sandboxes.runtimes.qemu.build import build_agent, build_launcher
from sandboxes.runtimes.qemu.image import make_image
from sandboxes.runtimes.qemu.machine import Accel
from sandboxes.runtimes.qemu.tools import QemuUnavailable, Tools, cache_folder, find_tools

KVM_DEVICE: Final = Path("/dev/kvm")

VERSION_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """What machines are made of here."""

    tools: Tools
    launcher: Path
    image: Path
    tiny_image: Path
    version: str
    """QEMU's own."""

    @property
    def digest(self) -> str:
        """Of everything that decides what a template holds."""
        parts = (self.version, self.tools.kernel.name, self.image.name)
        kernel = hashlib.sha256(self.tools.kernel.read_bytes()).hexdigest()
        return hashlib.sha256("\0".join((*parts, kernel)).encode()).hexdigest()

    def launch(self, words: list[str], accel: Accel, *, is_clone: bool) -> list[str]:
        """A machine's whole command; as root it runs under a uid that nobody has, where such a uid may
        use the accelerator."""
        is_open = accel is Accel.TCG or KVM_DEVICE.stat().st_mode & 0o006 == 0o006
        uid = fresh_uid() if os.getuid() == 0 and is_open else 0
        return [str(self.launcher), str(os.getpid()), str(uid), "1" if is_clone else "0", *words]


@cache
def find_hardware() -> Hardware:
    """Find, compile and pack what is needed; takes seconds once. Raises QemuUnavailable."""
    tools, folder = find_tools(), cache_folder()
    agent = build_agent(tools.compiler, folder)
    launcher = build_launcher(tools.compiler, folder)
    tiny = _image(tools, agent, folder, with_python=False)
    image = _image(tools, agent, folder, with_python=True)
    return Hardware(tools, launcher, image, tiny, _version(tools.qemu))


def _image(tools: Tools, agent: Path, folder: Path, *, with_python: bool) -> Path:
    """The image's file, named by its content."""
    archive = make_image(tools, agent, with_python=with_python)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch, "image")
        with made.open("wb") as file:
            archive.write(file)
        digest = hashlib.sha256(made.read_bytes()).hexdigest()[:24]
        target = folder / f"image-{digest}.cpio"
        made.chmod(0o644)
        os.replace(made, target)
    return target


def _version(qemu: str) -> str:
    try:
        done = subprocess.run(
            [qemu, "--version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise QemuUnavailable(f"{qemu} does not run: {error}") from error
    if done.returncode != 0:
        raise QemuUnavailable(f"{qemu} does not run: {done.stderr.strip()[-200:]}")
    return done.stdout.splitlines()[0].strip()
