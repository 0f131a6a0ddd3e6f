"""Finds what a virtual machine is made of here: QEMU, a guest kernel, busybox, a C compiler."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandboxes.ports import ForkFailed

KERNEL_VARIABLE: Final = "VENUS_GUEST_KERNEL"
"""Names a folder that holds `boot/vmlinuz-*` and `lib/modules`, as an unpacked kernel package does."""

INSTALL: Final = "run scripts/install_guest.sh"


class QemuUnavailable(ForkFailed):
    """No virtual machine can be made here; the message says what is missing and the remedy."""

    code = "qemu_unavailable"


@dataclass(frozen=True, slots=True)
class Tools:
    """Programs and files of this machine that the runtime uses."""

    qemu: str
    kernel: Path
    modules: Path
    busybox: Path
    compiler: str


def cache_folder() -> Path:
    """Where this user's guest kernel, compiled agent and accelerator's verdict lie."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base, "venusrl", "guest")


def find_tools() -> Tools:
    """Everything that is needed. Raises QemuUnavailable."""
    qemu = _program("qemu-system-x86_64", "QEMU is missing")
    busybox = _program("busybox", "a static busybox is missing")
    compiler = _program("cc", "a C compiler is missing")
    kernel, modules = _find_kernel()
    return Tools(qemu, kernel, modules, Path(busybox), compiler)


def _program(name: str, complaint: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise QemuUnavailable(f"{complaint} ({name}): {INSTALL}")
    return found


def _find_kernel() -> tuple[Path, Path]:
    """The named kernel, the installed one for machines in a cloud, or any other with its modules."""
    named = os.environ.get(KERNEL_VARIABLE)
    roots = [Path(named)] if named else [cache_folder() / "kernel", Path("/")]
    for root in roots:
        kernels = sorted(
            root.glob("boot/vmlinuz-*"), key=lambda path: ("cloud" in path.name, path.name)
        )
        for kernel in reversed(kernels):
            modules = root / "lib" / "modules" / kernel.name.removeprefix("vmlinuz-")
            if modules.is_dir() and os.access(kernel, os.R_OK):
                return kernel, modules
    places = " and ".join(str(root) for root in roots)
    raise QemuUnavailable(f"no guest kernel with its modules in {places}: {INSTALL}")
